"""Transforms of times: between texts, numbers and timestamps, and between time zones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rivven.connect.sdk import Settings, Transform, setting

from .columns import column, replaced, type_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Target = Literal[
    "iso8601",
    "epoch_millis",
    "epoch_secs",
    "epoch_seconds",
    "epoch_micros",
    "date",
    "date_only",
    "time",
    "time_only",
    "timestamp",
]
MILLIS_FROM, MICROS_FROM = 100_000_000_000, 100_000_000_000_000
"""Above these a number cannot well be seconds, or milliseconds: they would be the years 5138 and 5138."""


class TimestampSettings(Settings):
    fields: list[str] = setting("The fields to convert.", least=1)
    format: Target = setting("What they become.", default="iso8601")
    from_: Literal["auto", "seconds", "millis", "micros"] = setting(
        "What numbers count; `auto` goes by their size.", default="auto"
    )


class TimestampConverter(Transform[TimestampSettings]):
    name = "timestamp_converter"
    aliases = ("convert_timestamp", "timestamp")
    title = "Convert timestamps"
    summary = "Converts times between ISO 8601 texts, epoch numbers, dates and timestamps."
    docs = "Texts are read as ISO 8601, in UTC if they name no zone; what is no time becomes null."
    example = """
    transforms:
      - type: timestamp_converter
        config: {fields: [created_at], format: epoch_millis}
    """

    def columns(self) -> tuple[str, ...]:
        return tuple(self.settings.fields)

    def apply(self, frame: DataFrame) -> DataFrame:
        for path in self.settings.fields:
            moment = as_moment(frame, path, self.settings.from_)
            frame = replaced(frame, path, self._converted(moment))
        return frame

    def _converted(self, moment: Column) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        match self.settings.format:
            case "iso8601":
                return F.date_format(moment, "yyyy-MM-dd'T'HH:mm:ss.SSSXXX")
            case "epoch_millis":
                return F.unix_millis(moment)
            case "epoch_secs" | "epoch_seconds":
                return F.unix_seconds(moment)
            case "epoch_micros":
                return F.unix_micros(moment)
            case "date" | "date_only":
                return F.date_format(moment, "yyyy-MM-dd")
            case "time" | "time_only":
                return F.date_format(moment, "HH:mm:ss")
            case _:
                return moment


def as_moment(frame: DataFrame, path: str, unit: str = "auto") -> Column:
    """A field as a timestamp, whatever it was."""
    from pyspark.sql import functions as F  # noqa: N812

    value, kind = column(frame, path), type_of(frame, path).typeName()
    if kind in ("integer", "long", "short", "byte", "double", "float") or kind.startswith("decimal"):
        number = value.cast("double")
        micros = {"seconds": number * 1e6, "millis": number * 1e3, "micros": number}
        size = F.abs(number)
        guess = F.when(size >= MICROS_FROM, number).when(size >= MILLIS_FROM, number * 1e3).otherwise(number * 1e6)
        return F.timestamp_micros(micros.get(unit, guess).cast("bigint"))
    return value.try_cast("timestamp") if kind == "string" else value.cast("timestamp")


def _zone(name: str) -> str | None:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"there is no time zone {name!r}; write it like Europe/Berlin or UTC"
    return None


class TimezoneSettings(Settings):
    fields: list[str] = setting("The fields to convert.", least=1)
    from_: str = setting("The zone that times without one are in.", default="UTC", check=_zone)
    to: str = setting("The zone that they are written in.", default="UTC", check=_zone)
    date_only: bool = setting("Write the day alone.", default=False)
    format: str = setting("How they are written, as a pattern of Spark.", default="yyyy-MM-dd'T'HH:mm:ss")


class TimezoneConverter(Transform[TimezoneSettings]):
    name = "timezone_converter"
    title = "Convert time zones"
    summary = "Writes times as texts in another time zone."
    example = """
    transforms:
      - type: timezone_converter
        config: {fields: [created_at], from: UTC, to: Europe/Berlin}
    """

    def columns(self) -> tuple[str, ...]:
        return tuple(self.settings.fields)

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        pattern = "yyyy-MM-dd" if self.settings.date_only else self.settings.format
        for path in self.settings.fields:
            moment = as_moment(frame, path)
            there = F.from_utc_timestamp(F.to_utc_timestamp(moment, self.settings.from_), self.settings.to)
            frame = replaced(frame, path, F.date_format(there, pattern))
        return frame
