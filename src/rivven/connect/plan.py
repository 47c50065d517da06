"""From a file to the queries that run: what each reads, changes and writes, how often, and with which guarantee.

Pure: nothing is started or asked here. `explain` prints what this says, and `run` does it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from .config import ConnectConfig, PipelineEntry, SinkEntry, SourceEntry, Step, duration_ms
from .sdk import Connector, Delivery, OutputMode, Sink
from .settings import HIDDEN, Secret, Settings, fields_of

QueryKind = Literal["source", "sink", "pipeline", "dead_letters"]


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """One Structured Streaming query to be."""

    name: str
    kind: QueryKind
    entry: SourceEntry | SinkEntry | PipelineEntry
    reads: str
    changes: tuple[str, ...]
    writes: str
    trigger_ms: int
    checkpoint: str
    """Below the state directory."""
    delivery: Delivery
    bounded: bool
    topics_read: tuple[str, ...] = ()
    topics_written: tuple[str, ...] = ()
    output_mode: OutputMode = "append"
    phase: int = 0
    """With `--once`, what fills a topic runs before what drains it."""


def make_plan(config: ConnectConfig, only: frozenset[str] = frozenset()) -> list[QueryPlan]:
    """The queries of a file, in the order in which they start; those that are enabled, or named in `only`."""
    plans = [_source(name, entry) for name, entry in config.sources.items()]
    plans += [_pipeline(name, entry) for name, entry in config.pipelines.items()]
    for name, sink in config.sinks.items():
        plans.append(_sink(name, sink))
        if sink.dead_letter_topic is not None and sink.format == "json":
            plans.append(_dead_letters(name, sink))
    wanted = [plan for plan in plans if plan.entry.enabled]
    return in_phases([plan for plan in wanted if not only or plan.name.partition("/")[0] in only])


def in_phases(plans: list[QueryPlan]) -> list[QueryPlan]:
    """The same, each in the phase after those that write what it reads; in some phase where they form a circle."""
    phases = dict.fromkeys((plan.name for plan in plans), 0)
    for _ in plans:
        for plan in plans:
            fillers = [
                each for each in plans if set(each.topics_written) & set(plan.topics_read) and each is not plan
            ]
            least = 1 if plan.topics_read else 0
            phases[plan.name] = max([least, *(phases[each.name] + 1 for each in fillers)])
    return [replace(plan, phase=min(phases[plan.name], len(plans))) for plan in plans]


def _mode(steps: Sequence[Step]) -> OutputMode:
    """The output mode of a query: that of the step which does not just append."""
    modes = [step.make().output_mode for step in steps]
    return next((mode for mode in modes if mode != "append"), "append")


def _source(name: str, entry: SourceEntry) -> QueryPlan:
    source = entry.make()
    routed = [topic for step in entry.transforms for topic in topics_of(step.make())]
    limits = [f"at most {entry.rate_limit.events_per_second:,}/s"] if entry.rate_limit.events_per_second else []
    key = f", key from {', '.join(entry.key)}" if entry.key else ""
    by_content = f" and by content {', '.join(dict.fromkeys(routed))}" if routed else ""
    dead = (entry.dead_letter_topic,) if entry.dead_letter_topic else ()
    return QueryPlan(
        name=name,
        kind="source",
        entry=entry,
        reads=", ".join([_shown("source", source), *limits]),
        changes=tuple(map(_step, entry.transforms)),
        writes=f"topic {entry.topic}{by_content} as {entry.envelope} JSON{key}"
        + (f"; what cannot be read to {entry.dead_letter_topic}" if dead else ""),
        trigger_ms=_trigger_ms(entry.trigger),
        checkpoint=f"checkpoints/sources/{name}",
        delivery=_weaker(source.delivery, entry.delivery),
        bounded=source.bounded,
        output_mode=_mode(entry.transforms),
        topics_written=(entry.topic, *dict.fromkeys(routed), *dead),
    )


def _sink(name: str, entry: SinkEntry) -> QueryPlan:
    sink = entry.make()
    rate = entry.rate_limit.events_per_second
    limits = [f"at most {rate:,}/s"] if rate else []
    trigger_ms = _trigger_ms(entry.trigger)
    dead = (entry.dead_letter_topic,) if entry.dead_letter_topic else ()
    return QueryPlan(
        name=name,
        kind="sink",
        entry=entry,
        reads=", ".join([_topics_shown(entry), *limits]),
        changes=tuple(map(_step, entry.transforms)),
        writes=_shown("sink", sink) + (f"; what it refuses to topic {entry.dead_letter_topic}" if dead else ""),
        trigger_ms=max(trigger_ms, 1000) if rate else trigger_ms,
        checkpoint=f"checkpoints/sinks/{name}",
        delivery=sink.delivery,
        bounded=False,
        topics_read=tuple(entry.topics),
        topics_written=(*_sink_topics(sink, entry.transforms), *dead),
        output_mode=_mode(entry.transforms),
    )


def _sink_topics(sink: Sink[Any], steps: Sequence[Step]) -> tuple[str, ...]:
    """What a sink writes to, if that is topics: its own, and those that a router in front of it names."""
    own = sink.topics()
    routed = [topic for step in steps for topic in topics_of(step.make())] if own else []
    return tuple(dict.fromkeys((*own, *routed)))


def _dead_letters(name: str, entry: SinkEntry) -> QueryPlan:
    assert entry.dead_letter_topic is not None, "the caller has looked"
    return QueryPlan(
        name=f"{name}/dead-letters",
        kind="dead_letters",
        entry=entry,
        reads=f"what cannot be read in {_topics_shown(entry)}",
        changes=(),
        writes=f"topic {entry.dead_letter_topic}",
        trigger_ms=_trigger_ms(entry.trigger),
        checkpoint=f"checkpoints/dead-letters/{name}",
        delivery="exactly_once",
        bounded=False,
        topics_read=tuple(entry.topics),
        topics_written=(entry.dead_letter_topic,),
    )


def _pipeline(name: str, entry: PipelineEntry) -> QueryPlan:
    source, sink = entry.source.make(), entry.sink.make()
    rate = entry.source.rate_limit.events_per_second
    limits = [f"at most {rate:,}/s"] if rate else []
    dead = (entry.dead_letter_topic,) if entry.dead_letter_topic else ()
    return QueryPlan(
        name=name,
        kind="pipeline",
        entry=entry,
        reads=", ".join([_shown("source", source), *limits]),
        changes=tuple(map(_step, entry.transforms)),
        writes=_shown("sink", sink)
        + (f"; what cannot be read and what it refuses to topic {entry.dead_letter_topic}" if dead else ""),
        trigger_ms=_trigger_ms(entry.trigger),
        checkpoint=f"checkpoints/pipelines/{name}",
        delivery=_weaker(source.delivery, sink.delivery),
        bounded=source.bounded,
        topics_written=(*_sink_topics(sink, entry.transforms), *dead),
        output_mode=_mode(entry.transforms),
    )


def topics_of(transform: Any) -> list[str]:
    """The topics that a transform sends records to, if it is a router."""
    return list(transform.topics()) if hasattr(transform, "topics") else []


def _topics_shown(entry: SinkEntry) -> str:
    start = entry.start_offset if isinstance(entry.start_offset, str) else entry.start_offset.timestamp
    noun = "topic" if len(entry.topics) == 1 else "topics"
    return f"{noun} {', '.join(entry.topics)} as {entry.format} from {start}, as group {entry.consumer_group}"


def _trigger_ms(text: str) -> int:
    found = duration_ms(text)
    assert found is not None, "the file was checked"
    return found


def _weaker(one: Delivery, other: Delivery) -> Delivery:
    return "exactly_once" if one == other == "exactly_once" else "at_least_once"


def _step(step: Step) -> str:
    text = _shown("transform", step.make(), step.name)
    return f"{text}, for some records" if step.predicate else text


def _shown(kind: str, connector: Connector[Any], name: str = "") -> str:  # noqa: ARG001
    """A connector with the settings that are not at their defaults; never a secret."""
    given = ", ".join(_pairs(connector.settings))
    title = f"{connector.name} '{name}'" if name else connector.name
    return f"{title} ({given})" if given else title


def public(text: str) -> str:
    """An address without what may be secret in it: who asks, and the query."""
    bare = re.sub(r"(?<=://)[^/?#@]*@", "", text)
    return re.sub(r"^([a-z][a-z0-9+.-]*://[^?]*)\?.*", r"\1?...", bare, flags=re.DOTALL)


def _pairs(settings: Settings) -> list[str]:
    made = []
    for field in fields_of(type(settings)):
        value = getattr(settings, field.name)
        if value == field.default:
            continue
        if isinstance(value, Secret) or field.secret:
            shown = HIDDEN
        elif isinstance(value, Settings):
            shown = f"{{{', '.join(_pairs(value))}}}"
        elif isinstance(value, list) and value and isinstance(value[0], Settings):
            shown = f"{len(value)} of them"
        elif isinstance(value, dict):
            shown = f"{{{', '.join(map(str, value))}}}"  # names alone: headers carry tokens
        elif isinstance(value, list):
            shown = " ".join(public(str(each)) for each in value)
        else:
            shown = public(str(value))
        made.append(f"{field.key}={shown if len(shown) <= 80 else shown[:77] + '...'}")
    return made
