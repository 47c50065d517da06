"""Transforms of single fields: mask, rename, drop, cast, insert, extract, flatten, set to null, compute."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rivven.connect.sdk import RESERVED, Secret, Settings, Transform, setting

from .columns import (
    about_columns,
    any_of,
    column,
    data_columns,
    dropped,
    kept,
    quoted,
    refused,
    replaced,
    split,
    type_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Mask


class MaskSettings(Settings):
    fields: list[str] = setting("The fields to mask; `a.b` is a field of a struct.", least=1, also=("field",))
    method: Literal["hash", "redact", "partial", "asterisk"] = setting(
        "`hash` keeps equal values equal, `redact` leaves nothing, `partial` leaves the end, `asterisk` the length.",
        default="asterisk",
        also=("strategy",),
    )
    salt: Secret | None = setting("Put before a value that is hashed, so that it cannot be looked up.", default=None)
    keep: int = setting("Characters that `partial` leaves at the end.", default=4, least=0, most=64)
    replacement: str = setting("What `redact` puts in place of a value.", default="***")


class Mask(Transform[MaskSettings]):
    name = "mask"
    aliases = ("mask_field",)
    title = "Mask"
    summary = "Hides the values of fields: hashed, redacted, or all but the last characters."
    docs = """
    `hash` is SHA-256 in hexadecimal digits. Without a `salt`, values of which there are few, such as telephone
    numbers, can be found by trying all. A null stays null. Fields that are no text are masked as their text.
    """
    example = """
    transforms:
      - type: mask
        config: {fields: [email], method: hash, salt: "${MASK_SALT}"}
    """

    def columns(self) -> tuple[str, ...]:
        return tuple(self.settings.fields)

    def apply(self, frame: DataFrame) -> DataFrame:
        for path in self.settings.fields:
            frame = replaced(frame, path, self._masked(column(frame, path).cast("string")))
        return frame

    def _masked(self, value: Column) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        match self.settings.method:
            case "hash":
                salt = self.settings.salt.reveal() if self.settings.salt else ""
                return F.sha2(F.concat(F.lit(salt), value), 256)
            case "redact":
                return F.when(value.isNotNull(), F.lit(self.settings.replacement))
            case "partial":
                hidden = F.greatest(F.length(value) - F.lit(self.settings.keep), F.lit(0))
                short = F.length(value) <= self.settings.keep
                end = F.when(short, F.lit("")).otherwise(F.substring(value, hidden + F.lit(1), F.length(value)))
                return F.concat(F.repeat(F.lit("*"), F.when(short, F.length(value)).otherwise(hidden)), end)
            case _:
                return F.repeat(F.lit("*"), F.length(value))


# Rename, drop, keep


class RenameSettings(Settings):
    from_: str | None = setting("The field to rename.", default=None)
    to: str | None = setting("Its new name.", default=None)
    renames: dict[str, str] = setting("Several: old names to new ones.", factory=dict)
    include: list[str] = setting("Keep these fields alone, by their old names.", factory=list)
    exclude: list[str] = setting("Drop these fields.", factory=list)

    def problems(self) -> Iterable[tuple[str, str]]:
        if (self.from_ is None) != (self.to is None):
            yield "to" if self.to else "from", "`from` and `to` come together"
        elif self.from_ is None and not (self.renames or self.include or self.exclude):
            yield "renames", "say what to rename: `from` and `to`, or `renames` with several"


class Rename(Transform[RenameSettings]):
    name = "rename"
    aliases = ("rename_field", "replace_field")
    title = "Rename"
    summary = "Gives fields other names, and can keep or drop some."
    example = """
    transforms:
      - type: rename
        config: {renames: {customer_id: customer, unit_price: price}}
    """

    def _renames(self) -> dict[str, str]:
        own = {self.settings.from_: self.settings.to} if self.settings.from_ and self.settings.to else {}
        return {**self.settings.renames, **own}

    def columns(self) -> tuple[str, ...]:
        return (*self._renames(), *self.settings.include, *self.settings.exclude)

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        if self.settings.include:
            frame = kept(frame, self.settings.include)
        for path in self.settings.exclude:
            frame = dropped(frame, path)
        renames = self._renames()
        for path in list(renames):
            if split(frame, path)[1]:
                frame = dropped(replaced(frame, renames.pop(path), column(frame, path)), path)
        return frame.select(*[F.col(quoted(name)).alias(renames.get(name, name)) for name in frame.columns])


class DropSettings(Settings):
    fields: list[str] = setting("The fields to drop.", factory=list)
    field: str | None = setting("One of them.", default=None)

    def problems(self) -> Iterable[tuple[str, str]]:
        if not self.fields and self.field is None:
            yield "fields", "say which fields to drop"


class Drop(Transform[DropSettings]):
    name = "drop"
    aliases = ("remove_field", "drop_field", "remove")
    title = "Drop"
    summary = "Takes fields out of the record."
    example = """
    transforms:
      - type: drop
        config: {fields: [password, address.street]}
    """

    def columns(self) -> tuple[str, ...]:
        return (*self.settings.fields, *([self.settings.field] if self.settings.field else []))

    def apply(self, frame: DataFrame) -> DataFrame:
        for path in self.columns():
            frame = dropped(frame, path)
        return frame


# Cast


CASTS = {
    "string": "string",
    "int32": "int",
    "integer": "int",
    "int": "int",
    "int64": "bigint",
    "long": "bigint",
    "bigint": "bigint",
    "float32": "float",
    "float": "float",
    "float64": "double",
    "double": "double",
    "boolean": "boolean",
    "bool": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "binary": "binary",
}


VALUE_CHARS_MAX = 200
"""What of a value that cannot be cast is shown."""


def _cast_names(specs: dict[str, str]) -> str | None:
    for field, name in specs.items():
        if name.lower() not in CASTS and name != "json" and not name.lower().startswith("decimal"):
            return f"{field}: there is no type {name!r}; there is: {', '.join(CASTS)}, json and decimal(10,2)"
    return None


class CastSettings(Settings):
    specs: dict[str, str] = setting(
        "Fields and their new types.", least=1, check=_cast_names, example={"age": "int32"}
    )
    on_error: Literal["fail", "null"] = setting("What becomes of a value that cannot be cast.", default="fail")


class Cast(Transform[CastSettings]):
    name = "cast"
    title = "Cast"
    summary = "Changes the types of fields."
    docs = """
    The type `json` makes a text of a struct, an array or a map.

    A value that cannot be cast stops the pipeline, or sends its record to the dead-letter topic if there is one: the
    field is null in the letter's payload, and the error has the value. So mask what is secret before, not after.
    """
    example = """
    transforms:
      - type: cast
        config: {specs: {amount: "decimal(12,2)", paid: boolean}}
    """

    @property
    def refuses(self) -> bool:
        return self.settings.on_error == "fail"

    def columns(self) -> tuple[str, ...]:
        return tuple(self.settings.specs)

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        lenient = not self.refuses
        if self.refuses and "__corrupt" in frame.columns:
            lenient = True
            frame = refused(frame, F.coalesce(*[self._complaint(frame, path) for path in self.settings.specs]))
        for path in self.settings.specs:
            frame = replaced(frame, path, self._cast(frame, path, lenient=lenient))
        return frame

    def _cast(self, frame: DataFrame, path: str, *, lenient: bool) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        old, name = column(frame, path), self.settings.specs[path]
        if name == "json":
            nested = type_of(frame, path).typeName() in ("struct", "array", "map")
            return F.to_json(old) if nested else old.cast("string")
        kind = CASTS.get(name.lower(), name)
        return old.try_cast(kind) if lenient else old.cast(kind)

    def _complaint(self, frame: DataFrame, path: str) -> Column:
        """What is wrong with a value that cannot be cast; null for all others."""
        from pyspark.sql import functions as F  # noqa: N812

        old = column(frame, path)
        failed = old.isNotNull() & self._cast(frame, path, lenient=True).isNull()
        shown = F.substring(old.cast("string"), 1, VALUE_CHARS_MAX)
        return F.when(failed, F.concat(F.lit(f"{path}: '"), shown, F.lit(f"' is no {self.settings.specs[path]}")))


# Insert


class InsertSettings(Settings):
    field: str | None = setting("A field to add.", default=None)
    value: Any = setting("Its value.", default=None)
    static_fields: dict[str, Any] = setting("Several fields with their values.", factory=dict)
    timestamp_field: str | None = setting("A field that gets the time of processing.", default=None)
    date_field: str | None = setting("A field that gets the day of processing.", default=None)
    expression: str | None = setting("A Spark SQL expression for `field`, in place of `value`.", default=None)

    def problems(self) -> Iterable[tuple[str, str]]:
        if not (self.field or self.static_fields or self.timestamp_field or self.date_field):
            yield "field", "say what to add: `field` and `value`, or `static_fields`"
        if self.expression is not None and self.field is None:
            yield "expression", "needs `field` to put its result into"


class Insert(Transform[InsertSettings]):
    name = "insert_field"
    aliases = ("add_field", "insert", "add")
    title = "Insert"
    summary = "Adds fields: fixed values, an SQL expression, the time or the day."
    example = """
    transforms:
      - type: insert_field
        config: {field: total, expression: quantity * unit_price}
    """

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        own: dict[str, Any] = {}
        if self.settings.field and self.settings.expression is None:
            own[self.settings.field] = self.settings.value
        for path, value in {**self.settings.static_fields, **own}.items():
            frame = replaced(frame, path, constant(value))
        if self.settings.field and self.settings.expression is not None:
            frame = replaced(frame, self.settings.field, F.expr(self.settings.expression))
        if self.settings.timestamp_field:
            frame = replaced(frame, self.settings.timestamp_field, F.current_timestamp())
        if self.settings.date_field:
            frame = replaced(frame, self.settings.date_field, F.current_date())
        return frame


def constant(value: Any) -> Column:
    """A JSON value as a column: lists and objects as arrays and structs."""
    from pyspark.sql import functions as F  # noqa: N812

    if isinstance(value, dict):
        return F.struct(*[constant(item).alias(name) for name, item in value.items()])
    if isinstance(value, list):
        return F.array(*map(constant, value))
    return F.lit(value) if value is not None else F.lit(None).cast("string")


def equals(frame: DataFrame, path: str, wanted: Any) -> Column:
    """Whether a field has a value of the file; null where the field is, unless that is wanted.

    A text and a number are compared as what the field is, and never fail: by itself Spark would make numbers of all
    texts, and end the query at the first that is none.
    """
    from pyspark.sql import functions as F  # noqa: N812

    value, kind = column(frame, path), type_of(frame, path)
    if wanted is None:
        return value.isNull()
    given = constant(wanted)
    if isinstance(wanted, str | int | float) and isinstance(wanted, str) != (kind.typeName() == "string"):
        given = given.try_cast(kind)
    return F.when(value.isNotNull(), F.coalesce(value == given, F.lit(False)))


class AddTimestampSettings(Settings):
    field: str = setting("The field that gets the time.", default="processed_at")


class AddTimestamp(Transform[AddTimestampSettings]):
    name = "add_timestamp"
    title = "Add timestamp"
    summary = "Adds the time of processing."
    example = """
    transforms:
      - type: add_timestamp
        config: {field: seen_at}
    """

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        return replaced(frame, self.settings.field, F.current_timestamp())


# Extract and flatten


class ExtractSettings(Settings):
    field: str = setting("The field whose content takes the place of the record; a struct gives its fields.")


class Extract(Transform[ExtractSettings]):
    name = "extract_field"
    aliases = ("unwrap", "extract")
    title = "Extract"
    summary = "Replaces the record by the content of one of its fields."
    example = """
    transforms:
      - type: extract_field
        config: {field: payload}
    """

    def columns(self) -> tuple[str, ...]:
        return (self.settings.field,)

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        value, kind = column(frame, self.settings.field), type_of(frame, self.settings.field)
        about = [F.col(quoted(name)) for name in about_columns(frame)]
        inner = getattr(kind, "fields", None)
        if inner is None:
            return frame.select(value.alias(self.settings.field.rpartition(".")[2]), *about)
        return frame.select(*[value.getField(field.name).alias(field.name) for field in inner], *about)


class FlattenSettings(Settings):
    delimiter: str = setting("What stands between the names.", default="_")
    max_depth: int = setting("How deep to go; 0 for all the way.", default=0, least=0)


class Flatten(Transform[FlattenSettings]):
    name = "flatten"
    title = "Flatten"
    summary = "Makes columns of the fields of structs."
    docs = "Arrays and maps stay as they are. `max_depth: 1` takes the first level of structs apart."
    example = """
    transforms:
      - type: flatten
        config: {delimiter: "_"}
    """

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        made: dict[str, Column] = {}
        depth_max = self.settings.max_depth or 100

        def walk(name: str, value: Column, kind: Any, depth: int) -> None:
            inner = getattr(kind, "fields", None)
            if inner is None or depth >= depth_max:
                if name in made:
                    raise ValueError(f"flatten would make two columns {name!r}; choose another delimiter")
                made[name] = value.alias(name)
                return
            for field in inner:
                whole = f"{name}{self.settings.delimiter}{field.name}"
                walk(whole, value.getField(field.name), field.dataType, depth + 1)

        for field in frame.schema.fields:
            about = field.name in RESERVED
            walk(field.name, F.col(quoted(field.name)), None if about else field.dataType, 0)
        return frame.select(*made.values())


# Null and computed


class Condition(Settings):
    equals: Any = setting("Values equal to this.", default=None)
    matches: str | None = setting("Texts that match this regular expression.", default=None)


class SetNullSettings(Settings):
    fields: list[str] = setting("The fields.", least=1)
    condition: str | Condition = setting(
        "When: `always`, `if_empty`, a regular expression, or a mapping with `equals` or `matches`.", default="always"
    )


class SetNull(Transform[SetNullSettings]):
    name = "set_null"
    title = "Set null"
    summary = "Sets fields to null, always or under a condition."
    example = """
    transforms:
      - type: set_null
        config: {fields: [comment], condition: if_empty}
    """

    def columns(self) -> tuple[str, ...]:
        return tuple(self.settings.fields)

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        for path in self.settings.fields:
            value = column(frame, path)
            frame = replaced(frame, path, F.when(~F.coalesce(self._holds(frame, path), F.lit(False)), value))
        return frame

    def _holds(self, frame: DataFrame, path: str) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        text, condition = column(frame, path).cast("string"), self.settings.condition
        if isinstance(condition, Condition):
            if condition.matches is not None:
                return text.rlike(condition.matches)
            return equals(frame, path, condition.equals)
        if condition == "always":
            return F.lit(True)
        if condition in ("if_empty", "empty"):
            return text == ""
        return text.rlike(condition)


class Computation(Settings):
    target: str = setting("The field that gets the result.")
    type: Literal[
        "concat",
        "hash",
        "upper",
        "uppercase",
        "lower",
        "lowercase",
        "coalesce",
        "uuid",
        "timestamp",
        "current_timestamp",
    ] = setting("What is computed.")
    parts: list[str] = setting("For `concat`: fields as $name, and texts.", factory=list)
    fields: list[str] = setting("For `hash` and `coalesce`.", factory=list)
    source: str | None = setting("For `upper` and `lower`.", default=None)

    def problems(self) -> Iterable[tuple[str, str]]:
        if self.type == "concat" and not self.parts:
            yield "parts", "are needed for concat"
        if self.type in ("hash", "coalesce") and not self.fields:
            yield "fields", f"are needed for {self.type}"
        if self.type.startswith(("upper", "lower")) and self.source is None:
            yield "source", f"is needed for {self.type}"


class ComputeSettings(Settings):
    computations: list[Computation] = setting("What to compute, in this order.", least=1)


class Compute(Transform[ComputeSettings]):
    name = "compute_field"
    aliases = ("compute",)
    title = "Compute"
    summary = "Computes fields from others: joined texts, hashes, cases, the first that is not null, ids, times."
    docs = "For anything else, `insert_field` takes an SQL expression."
    example = """
    transforms:
      - type: compute_field
        config:
          computations:
            - {target: label, type: concat, parts: [$product, "/", $country]}
    """
    separator: ClassVar[str] = "\x1f"

    def apply(self, frame: DataFrame) -> DataFrame:
        for each in self.settings.computations:
            frame = replaced(frame, each.target, self._value(frame, each))
        return frame

    def _value(self, frame: DataFrame, each: Computation) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        match each.type:
            case "concat":
                parts = [column(frame, part[1:]) if part.startswith("$") else F.lit(part) for part in each.parts]
                return F.concat_ws("", *[part.cast("string") for part in parts])
            case "hash":
                values = [column(frame, path).cast("string") for path in each.fields]
                return F.sha2(F.concat_ws(self.separator, *values), 256)
            case "upper" | "uppercase":
                return F.upper(column(frame, each.source or ""))
            case "lower" | "lowercase":
                return F.lower(column(frame, each.source or ""))
            case "coalesce":
                return F.coalesce(*[column(frame, path) for path in each.fields])
            case "uuid":
                return F.expr("uuid()")
            case _:
                return F.current_timestamp()


# What a change event carries


class NewStateSettings(Settings):
    drop_tombstones: bool = setting("Leave out records without data.", default=False)
    add_table: bool = setting("Add the stream as `__table`.", default=False)
    add_schema: bool = setting("Add the namespace as `__schema`.", default=False)
    add_op: bool = setting("Add the kind of change as `__op`: c, u, d or r.", default=False)
    add_ts: bool = setting("Add the time in milliseconds as `__ts_ms`.", default=False)


class NewState(Transform[NewStateSettings]):
    name = "extract_new_record_state"
    title = "New record state"
    summary = "Makes of a change event the row as it is after the change."
    docs = """
    Where the record has the fields `before` and `after`, `after` takes its place, and `before` for a delete, which
    also gets `__deleted`.
    """
    example = """
    transforms:
      - type: extract_new_record_state
        config: {add_op: true}
    """

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        if {"before", "after"} <= set(data_columns(frame)):
            row = F.coalesce(F.col("after"), F.col("before"))
            about = [F.col(quoted(name)) for name in about_columns(frame)]
            inner = getattr(frame.schema["after"].dataType, "fields", None)
            if inner is not None:
                deleted = (F.col("after").isNull() & F.col("before").isNotNull()).alias("__deleted")
                frame = frame.select(*[row.getField(f.name).alias(f.name) for f in inner], deleted, *about)
        if self.settings.drop_tombstones:
            names = [name for name in data_columns(frame) if name != "__deleted"]
            names += [name for name in frame.columns if name == "__corrupt"]  # no tombstone, but a letter to be
            frame = frame.filter(any_of(F.col(quoted(name)).isNotNull() for name in names))
        codes = {"insert": "c", "update": "u", "delete": "d"}
        pairs = [part for name, code in codes.items() for part in (F.lit(name), F.lit(code))]
        adds = {
            "__table": ("__stream", None, self.settings.add_table),
            "__schema": ("__namespace", None, self.settings.add_schema),
            "__op": (
                "__event_type",
                lambda value: F.coalesce(F.create_map(*pairs)[value], F.lit("r")),
                self.settings.add_op,
            ),
            "__ts_ms": ("__timestamp", lambda value: F.unix_millis(value), self.settings.add_ts),
        }
        for target, (source, change, wanted) in adds.items():
            if wanted and source in frame.columns:
                value = F.col(source)
                frame = frame.withColumn(target, change(value) if change else value)
        return frame
