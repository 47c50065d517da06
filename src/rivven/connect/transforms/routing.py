"""Transforms that decide about whole records: which go on, to which topic, under which key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rivven.connect.sdk import Settings, Transform, setting

from .columns import any_of, column, paths, quoted, replaced
from .fields import equals

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Filter

SIMPLE = re.compile(r"\s*([\w.]+)\s+(==|=|!=|<>|is_null|is_not_null|matches|in)(?:\s+(.*\S))?\s*", re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class FilterSettings(Settings):
    where: str | None = setting("A Spark SQL expression; records for which it is true go on.", default=None)
    field: str | None = setting("A field that must be equal to `equals`.", default=None)
    equals: Any = setting("The value of that field.", default=None)
    condition: str | None = setting(
        "`field op value` with = != is_null is_not_null matches in, or a Spark SQL expression.", default=None
    )
    drop: bool = setting("Turn it round: such records are dropped.", default=False)

    def problems(self) -> Iterable[tuple[str, str]]:
        given = [name for name in ("where", "field", "condition") if getattr(self, name) is not None]
        if len(given) != 1:
            also = f", not {' and '.join(given)}" if given else ""
            yield given[-1] if given else "where", f"give one of `where`, `field` with `equals`, `condition`{also}"


class Filter(Transform[FilterSettings]):
    name = "filter"
    title = "Filter"
    summary = "Lets only some records go on, by an SQL expression or a field's value."
    docs = "An expression that is null, because a field of it is, counts as false."
    example = """
    transforms:
      - type: filter
        config: {where: "amount > 100 AND status <> 'returned'"}
    """

    def apply(self, frame: DataFrame) -> DataFrame:
        return frame.filter(self.keep(frame))

    def keep(self, frame: DataFrame) -> Column:
        """Whether a record goes on; never null. What could not be read does: it has no fields to go by, and is to
        become a letter."""
        from pyspark.sql import functions as F  # noqa: N812

        if self.settings.field is not None:
            holds = equals(frame, self.settings.field, self.settings.equals)
        elif self.settings.where is not None:
            holds = F.expr(self.settings.where)
        else:
            holds = condition_of(frame, self.settings.condition or "")
        holds = F.coalesce(holds, F.lit(False))
        kept = ~holds if self.settings.drop else holds
        return kept | F.col("__corrupt").isNotNull() if "__corrupt" in frame.columns else kept


def condition_of(frame: DataFrame, text: str) -> Column:
    """A condition in three words, or an SQL expression."""
    from pyspark.sql import functions as F  # noqa: N812

    found = SIMPLE.fullmatch(text)
    if found is None or found[1] not in paths(frame):
        return F.expr(text)
    path, operation, rest = found[1], found[2], (found[3] or "")
    value = column(frame, path)
    if operation == "is_null":
        return value.isNull()
    if operation == "is_not_null":
        return value.isNotNull()
    if operation == "matches":
        return value.cast("string").rlike(_unquoted(rest))
    if operation == "in":
        listed = [_unquoted(each.strip()) for each in rest.strip("()[]").split(",")]
        return value.cast("string").isin(*listed)
    if not re.fullmatch(r"\w+|'[^']*'|\"[^\"]*\"|[\w.@-]+", rest) or rest in frame.columns:
        return F.expr(text)
    equal = equals(frame, path, _literal(rest))
    return equal if operation in ("=", "==") else ~equal


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _literal(text: str) -> bool | float | str:
    if text in ("true", "false"):
        return text == "true"
    if NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return _unquoted(text)


# Routes


class Route(Settings):
    topic: str = setting("Where such records go.", least=1)
    when: str | None = setting("A Spark SQL expression that must be true.", default=None)
    field: str | None = setting("Or a field,", default=None)
    value: Any = setting("with this value,", default=None)
    pattern: str | None = setting("or a text that matches this regular expression.", default=None)

    def problems(self) -> Iterable[tuple[str, str]]:
        if (self.when is None) == (self.field is None):
            yield "when", "give either `when` or `field` with `value` or `pattern`"
        elif self.field is not None and self.value is None and self.pattern is None:
            yield "field", "needs `value` or `pattern`; for null there is `when: field IS NULL`"


class ContentRouterSettings(Settings):
    routes: list[Route] = setting("Tried in this order; the first that holds decides.", least=1)
    default_topic: str | None = setting("For all others; without it they go where the source writes.", default=None)


class ContentRouter(Transform[ContentRouterSettings]):
    name = "content_router"
    aliases = ("route",)
    title = "Route by content"
    summary = "Sends records to different topics by what is in them."
    docs = """
    Sets the column `__topic`, by which a source writes. Topics that routes name are made like the source's own. In
    front of a sink that is no topic it has no effect.
    """
    example = """
    transforms:
      - type: content_router
        config:
          routes:
            - {field: country, value: DE, topic: orders-de}
            - {when: amount > 1000, topic: orders-large}
    """

    def columns(self) -> tuple[str, ...]:
        return tuple(route.field for route in self.settings.routes if route.field is not None)

    def topics(self) -> list[str]:
        """The topics that it may send to."""
        own = [self.settings.default_topic] if self.settings.default_topic else []
        return [*(route.topic for route in self.settings.routes), *own]

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        chosen = F.lit(None).cast("string")
        if self.settings.default_topic is not None:
            chosen = F.lit(self.settings.default_topic)
        elif "__topic" in frame.columns:
            chosen = F.col("__topic")
        for route in reversed(self.settings.routes):
            chosen = F.when(F.coalesce(self._holds(frame, route), F.lit(False)), F.lit(route.topic)).otherwise(chosen)
        return frame.withColumn("__topic", chosen)

    def _holds(self, frame: DataFrame, route: Route) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        if route.field is None:
            return F.expr(route.when or "false")
        if route.pattern is not None:
            return column(frame, route.field).cast("string").rlike(route.pattern)
        return equals(frame, route.field, route.value)


class RegexRoute(Settings):
    pattern: str = setting("A regular expression that the stream's name matches.")
    topic: str = setting("Where its records go.", least=1)


class RegexRouterSettings(Settings):
    routes: list[RegexRoute] = setting("Tried in this order.", factory=list)
    default_topic: str = setting("For all others.", default="default", least=1)


class RegexRouter(Transform[RegexRouterSettings]):
    name = "regex_router"
    title = "Route by name"
    summary = "Sends records to different topics by the name of their stream."
    example = """
    transforms:
      - type: regex_router
        config:
          routes: [{pattern: "^public\\\\.", topic: public}]
          default_topic: others
    """

    def topics(self) -> list[str]:
        return [*(route.topic for route in self.settings.routes), self.settings.default_topic]

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        named = [F.col(name) for name in ("__stream", "__topic") if name in frame.columns]
        name = F.coalesce(*named, F.lit(""))
        chosen = F.lit(self.settings.default_topic)
        for route in reversed(self.settings.routes):
            chosen = F.when(name.rlike(route.pattern), F.lit(route.topic)).otherwise(chosen)
        return frame.withColumn("__topic", chosen)


# Keys


class ValueToKeySettings(Settings):
    fields: list[str] = setting("One field makes the key as it is, several make a JSON object.", least=1)


class ValueToKey(Transform[ValueToKeySettings]):
    name = "value_to_key"
    title = "Value to key"
    summary = "Makes the record's key from its fields."
    example = """
    transforms:
      - type: value_to_key
        config: {fields: [customer_id]}
    """

    def columns(self) -> tuple[str, ...]:
        return tuple(self.settings.fields)

    def apply(self, frame: DataFrame) -> DataFrame:
        return frame.withColumn("__key", key_of(frame, self.settings.fields))


def key_of(frame: DataFrame, fields: Iterable[str]) -> Column:
    """The key that fields make: one as its text, several as a JSON object."""
    from pyspark.sql import functions as F  # noqa: N812

    names = list(fields)
    if len(names) == 1:
        return column(frame, names[0]).cast("string")
    return F.to_json(F.struct(*[column(frame, name).alias(name) for name in names]), {"ignoreNullFields": "false"})


HEADERS = {
    "source_type": "__metadata.source_type",
    "source": "__metadata.source_type",
    "database": "__metadata.database",
    "db": "__metadata.database",
    "schema": "__namespace",
    "table": "__stream",
    "operation": "__event_type",
    "op": "__event_type",
    "timestamp": "__timestamp",
    "ts": "__timestamp",
    "transaction_id": "__metadata.transaction_id",
    "txid": "__metadata.transaction_id",
    "xid": "__metadata.transaction_id",
}


def _headers(fields: dict[str, str]) -> str | None:
    for name in fields:
        if name not in HEADERS:
            return f"there is no {name!r}; there is: {', '.join(HEADERS)}"
    return None


class HeaderToValueSettings(Settings):
    fields: dict[str, str] = setting("What is known about the record, and the field that it goes to.", check=_headers)
    all_headers_prefix: str | None = setting("Add all that is known, under names that begin like this.", default=None)
    move: bool = setting("Take it away from where it was.", default=False)


class HeaderToValue(Transform[HeaderToValueSettings]):
    name = "header_to_value"
    title = "Header to value"
    summary = "Adds what is known about the record, such as its stream or time, to its fields."
    example = """
    transforms:
      - type: header_to_value
        config: {fields: {table: source_table, ts: changed_at}}
    """

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        there = set(paths(frame))
        wanted = dict(self.settings.fields)
        if self.settings.all_headers_prefix is not None:
            whole = ("source_type", "database", "schema", "table", "operation", "timestamp", "transaction_id")
            wanted |= {name: self.settings.all_headers_prefix + name for name in whole if HEADERS[name] in there}
        for name, target in wanted.items():
            source = HEADERS[name]
            value = F.col(source) if source in there else F.lit(None).cast("string")
            frame = replaced(frame, target, value)
        if self.settings.move:
            gone = {HEADERS[name] for name in wanted}
            frame = frame.select(*[quoted(name) for name in frame.columns if name not in gone])
        return frame


# Only for some records


def holds(frame: DataFrame, predicate: Any) -> Column:
    """Whether a predicate of the file holds for a record; never null."""
    from pyspark.sql import functions as F  # noqa: N812

    def about(name: str) -> Column:
        return F.col(name).cast("string") if name in frame.columns else F.lit(None).cast("string")

    conditions: list[Column] = []
    if predicate.table is not None:
        conditions.append(about("__stream").rlike(predicate.table))
    if predicate.tables:
        conditions.append(about("__stream").isin(*predicate.tables))
    if predicate.schema is not None:
        conditions.append(about("__namespace") == predicate.schema)
    if predicate.schemas:
        conditions.append(about("__namespace").isin(*predicate.schemas))
    if predicate.database is not None:
        there = "__metadata.database" in paths(frame)
        conditions.append(F.col("__metadata.database") == predicate.database if there else F.lit(False))
    if predicate.operations:
        conditions.append(about("__event_type").isin(*[name.lower() for name in predicate.operations]))
    if predicate.field_exists is not None:
        exists = predicate.field_exists in paths(frame)
        conditions.append(column(frame, predicate.field_exists).isNotNull() if exists else F.lit(False))
    if predicate.field_value is not None:
        conditions.append(equals(frame, predicate.field_value.field, predicate.field_value.value))
    failed = any_of([~F.coalesce(condition, F.lit(False)) for condition in conditions] or [F.lit(False)])
    return failed if predicate.negate else ~failed


def apply_where(transform: Transform[Any], frame: DataFrame, predicate: Any) -> DataFrame:
    """A transform for the records of a predicate alone: the others keep the values they had.

    Both versions of a record stand side by side in one projection, since a union would read the source twice. A
    column that only the changed records have is null in the others, and one that they lose is null in them.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if isinstance(transform, Filter):
        return frame.filter(~holds(frame, predicate) | transform.keep(frame))
    before = F.struct(*[F.col(quoted(name)) for name in frame.columns])
    both = frame.withColumn("__before", before).withColumn("__holds", holds(frame, predicate))
    after = transform.apply(both)
    old_types = {field.name: field.dataType for field in frame.schema.fields}
    made = []
    for field in after.schema.fields:
        if field.name in ("__before", "__holds"):
            continue
        old = F.lit(None)
        if field.name in old_types:
            old = F.col("__before").getField(field.name).cast(field.dataType)
        made.append(F.when(F.col("__holds"), F.col(quoted(field.name))).otherwise(old).alias(field.name))
    lost = [name for name in old_types if name not in after.columns]
    made += [F.when(~F.col("__holds"), F.col("__before").getField(name)).alias(name) for name in lost]
    return after.select(*made)
