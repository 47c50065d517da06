"""From topics to a topic: what the transforms made of records, written exactly once to the same broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rivven.connect.sdk import RESERVED, Launch, Settings, Sink, setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


class TopicSettings(Settings):
    topic: str = setting("The topic to write to; made if it is not there, as `settings.topic` says.", least=1)
    key: list[str] = setting("Fields that make the key; without any, records keep theirs.", factory=list)
    envelope: Literal["plain", "event"] = setting(
        "`plain` writes the fields as JSON, `event` in the envelope that sources write.", default="plain"
    )


class TopicSink(Sink[TopicSettings]):
    name = "topic"
    aliases = ("rivven",)
    title = "Topic"
    summary = "Writes records to another topic of the same broker."
    docs = """
    For what is derived: cleaned, enriched, routed or aggregated records that others read. A micro-batch becomes
    visible as a whole, by one decision of the broker, and after a crash it is written once.

    With an aggregation (`sql` with `output_mode: update`) each micro-batch writes the rows that changed: the latest
    record of a key is its present value. Give the topic `cleanup.policy=compact` to keep no more than that.

    A record above the topic's `max.message.bytes` goes to the `dead_letter_topic`, or without one it stops the
    pipeline.
    """
    example = """
    sinks:
      totals:
        connector: topic
        topics: [orders]
        consumer_group: totals
        transforms:
          - type: sql
            config:
              query: SELECT country, count(*) AS orders FROM input GROUP BY country
              output_mode: update
        config:
          topic: totals
          key: [country]
    """
    extra = "spark"
    delivery = "exactly_once"
    output_modes = ("append", "update", "complete")
    record_columns = RESERVED
    puts_aside = True

    def topics(self) -> tuple[str, ...]:
        return (self.settings.topic,)

    def start(self, frame: DataFrame, launch: Launch) -> StreamingQuery:
        from rivven.connect import records
        from rivven.connect.bridge import start_to_topic

        settings = self.settings
        shaped = records.to_topic(
            frame,
            name=launch.name,
            topic=settings.topic,
            stream=launch.name,
            namespace=None,
            envelope=settings.envelope,
            key=settings.key,
            dead_letter_topic=launch.dead_letter_topic,
            record_bytes_max=launch.record_bytes_max(settings.topic),
        )
        return start_to_topic(shaped, launch, launch.broker)
