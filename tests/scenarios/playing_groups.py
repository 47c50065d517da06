"""Plays about consumer groups: plain text, one line a deed, and below it what came of it, indented.

    python tests/scenarios/playing_groups.py --rewrite

writes what the plays print now into their files; read the difference before committing it. A play has one group. The
deeds, where NAME is an actor and keeps the member id that it was given:

    config KEY=VALUE ...                 before anything else; see GroupConfig
    topics NAME=PARTITIONS ...           the topics that there are
    join NAME [KEY=VALUE ...]            protocols=range,roundrobin  topics=t,u  instance=i  session=6s  rebalance=30s
                                         type=consumer  native  old (no id first, no skipped assignment)  id=NAME
                                         owned=t/0,t/1 (what a cooperative member has)
    sync NAME [MEMBER=t/0,t/1 ...]       with what a leader assigns
    beat NAME, leave NAME ..., remove INSTANCE ...
    heartbeat NAME EPOCH|same [KEY=...]  the consumer protocol: topics= pattern= owned= instance= assignor= rebalance=
    commit NAME|- t/0=5[:metadata] ...   - is nobody; generation=N to speak for another
    fetch t/0 ..., delete-group, delete-offsets t/0 ..., describe, list
    wait 3s                              time goes by
    hold, release, fail                  let writes wait, let them through, or let the waiting ones fail
    restart                              all that was not written is gone
"""

from __future__ import annotations

import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from random import Random

from rivven.assign import Subscription, decode_assignment, decode_subscription, encode_assignment, encode_subscription
from rivven.coordinator import (
    NO_GENERATION,
    Alive,
    Answer,
    Commit,
    Committed,
    CommittedOffset,
    ConsumerAlive,
    ConsumerHeartbeat,
    Deleted,
    DeleteGroup,
    DeleteOffsets,
    DescribedConsumerGroup,
    Effect,
    FetchOffsets,
    GroupConfig,
    Groups,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Left,
    Persist,
    Sync,
    Synced,
)
from rivven.errors import DiskFull, MemberIdRequired, RivvenError
from rivven.model import TopicPartition

HERE = Path(__file__).parent / "groups"
GROUP = "g"


def plays() -> list[Path]:
    return sorted(HERE.glob("*.txt"))


def perform(text: str) -> str:
    """The play with what its deeds print now."""
    stage = Stage()
    written: list[str] = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        written.append(line)
        if line and not line.startswith("#"):
            written += [f"    {told}" for told in stage.do(line)]
    return "\n".join(written) + "\n"


class Stage:
    def __init__(self) -> None:
        self.config = GroupConfig(initial_rebalance_delay_ms=0)
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.asked: list[str] = []
        self.held: list[Persist] | None = None
        self.told: list[str] = []
        self.topics: dict[str, int] = {}
        self.groups = Groups(self.config, Random(1))
        self.groups.recall(self.now_ms)

    def do(self, line: str) -> list[str]:
        verb, *words = line.split()
        self.told = []
        getattr(self, "do_" + verb.replace("-", "_"))(*words)
        return self.told

    # Settings

    def do_config(self, *words: str) -> None:
        kinds = {field.name for field in fields(GroupConfig)}
        given = {key: millis(value) for key, value in options(words).items()}
        assert given.keys() <= kinds, f"of {sorted(kinds)}"
        self.config = replace(self.config, **given)
        self.groups = Groups(self.config, Random(1))
        self.groups.recall(self.now_ms)

    def do_topics(self, *words: str) -> None:
        self.topics = {topic: int(count) for topic, count in options(words).items()}
        self.groups.topics_changed(self.topics)

    # The classic protocol

    def do_join(self, name: str, *words: str) -> None:
        given = options(words)
        topics = tuple(given.get("topics", "t").split(","))
        owned = tuple(partitions(given.get("owned", "")))
        generation = self.generations.get(name, -1) if owned else -1
        metadata = encode_subscription(Subscription(topics, owned=owned, generation=generation))
        request = Join(
            GROUP,
            self.ids.get(given.get("id", name), given.get("id", "")),
            given.get("instance"),
            name,
            "host",
            given.get("type", "consumer"),
            tuple((protocol, metadata) for protocol in given.get("protocols", "range").split(",")),
            millis(given.get("session", "10s")),
            millis(given.get("rebalance", "30s")),
        )
        if "new" in given:
            request = replace(request, member_id="")
        if "native" in given:
            request = replace(request, id_required=False, adopt_id=True, initial_delay_ms=0, members_to_all=True)
        if "old" in given:
            request = replace(request, id_required=False, can_skip_assignment=False)
        self.ask(name, request)

    def do_sync(self, name: str, *words: str) -> None:
        given = {key: value for key, value in options(words).items() if key not in ("instance", "generation")}
        assignments = tuple(
            (self.ids.get(member, member), encode_assignment(partitions(text))) for member, text in given.items()
        )
        instance = options(words).get("instance")
        self.ask(name, Sync(GROUP, self.generation(name, words), self.id_of(name), instance, assignments=assignments))

    def do_beat(self, name: str, *words: str) -> None:
        instance = options(words).get("instance")
        self.ask(name, Heartbeat(GROUP, self.generation(name, words), self.id_of(name), instance))

    def do_leave(self, *names: str) -> None:
        self.ask(names[0], Leave(GROUP, tuple((self.id_of(name), None) for name in names)))

    def do_remove(self, *instances: str) -> None:
        self.ask("admin", Leave(GROUP, tuple(("", instance) for instance in instances)))

    # The consumer protocol

    def do_heartbeat(self, name: str, epoch: str, *words: str) -> None:
        given = options(words)
        request = ConsumerHeartbeat(
            GROUP,
            self.ids.setdefault(name, name),
            self.generations.get(name, 0) if epoch == "same" else int(epoch),
            given.get("instance"),
            client_id=name,
            topics=tuple(given["topics"].split(",")) if "topics" in given else None,
            pattern=given.get("pattern"),
            assignor=given.get("assignor"),
            owned=frozenset(partitions(given["owned"])) if "owned" in given else None,
        )
        if epoch == "0":
            timeout_ms = millis(given.get("rebalance", "30s"))
            request = replace(request, rebalance_timeout_ms=timeout_ms, owned=frozenset())
        self.ask(name, request)

    # Offsets and the group as a whole

    def do_commit(self, name: str, *words: str) -> None:
        given = {key: value for key, value in options(words).items() if "/" in key}
        offsets = []
        for where, what in given.items():
            offset, _, metadata = what.partition(":")
            offsets.append((partition(where), CommittedOffset(int(offset), 7, metadata, self.now_ms)))
        nobody = name == "-"
        member_id, generation = ("", NO_GENERATION) if nobody else (self.id_of(name), self.generation(name, words))
        self.ask(name, Commit(GROUP, tuple(offsets), member_id, None, generation, "unchecked" in options(words)))

    def do_fetch(self, *words: str) -> None:
        found = self.groups.fetch(FetchOffsets(GROUP, tuple(partition(word) for word in words)))
        for where, committed in found.offsets.items():
            if committed is None:
                self.told.append(f"{where} nothing")
            else:
                facts = f"epoch {committed.leader_epoch}, metadata {committed.metadata!r}"
                self.told.append(f"{where} at {committed.offset}, {facts}")

    def do_delete_group(self) -> None:
        self.ask("admin", DeleteGroup(GROUP))

    def do_delete_offsets(self, *words: str) -> None:
        self.ask("admin", DeleteOffsets(GROUP, tuple(partition(word) for word in words)))

    def do_list(self) -> None:
        self.told += [f"{one.group} {one.kind} {one.phase.value}" for one in self.groups.list()] or ["no groups"]

    def do_describe(self) -> None:
        try:
            found = self.groups.describe(GROUP)
        except RivvenError as error:
            self.told.append(f"! {type(error).__name__}: {error}")
            return
        if isinstance(found, DescribedConsumerGroup):
            self.told.append(
                f"{found.phase.value}, epoch {found.epoch}, target {found.target_epoch}, {found.assignor}"
            )
            for one in found.members:
                has = f"epoch {one.member_epoch} has {show(one.assignment)} of {show(one.target)}"
                classic = " (classic)" if one.kind == "classic" else ""
                self.told.append(f"{self.name_of(one.member_id)}{classic}: {has}")
            return
        self.told.append(f"{found.phase.value}, generation {found.generation}, {found.protocol or 'no protocol'}")
        for member in found.members:
            leads = " leads" if member.member_id == found.leader else ""
            has = show(decode_assignment(member.assignment))
            self.told.append(f"{self.name_of(member.member_id)}{leads} has {has}")

    # Time, and the disk

    def do_wait(self, word: str) -> None:
        end_ms = self.now_ms + millis(word)
        while (due_ms := self.groups.due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.perform(self.groups.tick(self.now_ms))
        self.now_ms = end_ms

    def do_hold(self) -> None:
        self.held = []

    def do_release(self) -> None:
        held, self.held = self.held or [], None
        self.perform(held)

    def do_fail(self) -> None:
        held, self.held = self.held or [], None
        for write in held:
            self.perform(self.groups.failed(write.token, DiskFull(wanted_bytes=1, path="log"), self.now_ms))

    def do_restart(self) -> None:
        self.held = None
        self.groups = Groups(self.config, Random(2))
        for key, value in self.log:
            self.groups.replay(key, value)
        self.groups.topics_changed(self.topics)
        self.groups.recall(self.now_ms)

    # Effects

    def ask(self, name: str, request: object) -> None:
        self.asked.append(name)
        self.perform(self.groups.ask(request, len(self.asked) - 1, self.now_ms))  # type: ignore[arg-type]

    def perform(self, effects: list[Effect] | list[Persist]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                self.hear(self.asked[effect.reply_id], effect)
            elif self.held is not None:
                self.held.append(effect)
            else:
                self.log += effect.records
                self.perform(self.groups.persisted(effect.token, self.now_ms))

    def hear(self, name: str, answer: Answer) -> None:
        result = answer.result
        if isinstance(result, MemberIdRequired):
            self.ids[name] = result.facts["member"]
        if isinstance(result, Joined):
            self.ids[name], self.generations[name] = result.member_id, result.generation
        if isinstance(result, ConsumerAlive):
            self.generations[name] = result.member_epoch
        self.told.append(f"{name}: {self.say(result)}")

    def say(self, result: object) -> str:
        match result:
            case Joined():
                leader = self.name_of(result.leader) if result.leader else "nobody"
                told = f"joined generation {result.generation}, {result.protocol}, {leader} leads"
                members = ", ".join(
                    f"{self.name_of(one.member_id)} wants {' '.join(decode_subscription(one.metadata).topics)}"
                    for one in result.members
                )
                skip = "; nothing to assign" if result.skip_assignment else ""
                return told + (f" ({members})" if members else "") + skip
            case Synced():
                return f"has {show(decode_assignment(result.assignment))}"
            case Alive():
                return "alive"
            case Left():
                return "; ".join("left" if one.error is None else self.say(one.error) for one in result.members)
            case ConsumerAlive():
                has = "" if result.assignment is None else f", has {show(result.assignment)}"
                return f"epoch {result.member_epoch}{has}"
            case Committed():
                return "committed" + "".join(f"; {one}: {self.say(why)}" for one, why in result.errors.items())
            case Deleted():
                return "deleted" + "".join(f"; {one}: {self.say(why)}" for one, why in result.errors.items())
            case _:
                return f"! {type(result).__name__}"

    def id_of(self, name: str) -> str:
        return self.ids.get(name, name)

    def name_of(self, member_id: str) -> str:
        found = [name for name, one in self.ids.items() if one == member_id]
        return found[-1] if found else re.sub(r"-[0-9a-f-]{36}$", "*", member_id)

    def generation(self, name: str, words: tuple[str, ...]) -> int:
        given = options(words).get("generation")
        return self.generations.get(name, 0) if given is None else int(given)


def options(words: tuple[str, ...]) -> dict[str, str]:
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def millis(text: str) -> int:
    for unit, size in (("ms", 1), ("s", 1_000), ("m", 60_000), ("d", 86_400_000)):
        if text.endswith(unit):
            return round(float(text.removesuffix(unit)) * size)
    return int(text)


def partition(text: str) -> TopicPartition:
    topic, _, number = text.partition("/")
    return TopicPartition(topic, int(number))


def partitions(text: str) -> list[TopicPartition]:
    return [partition(one) for one in text.split(",") if one]


def show(found: object) -> str:
    return " ".join(str(one) for one in sorted(found)) or "nothing"  # type: ignore[call-overload]


def main() -> None:
    for path in plays():
        print(path.name)
        now = perform(path.read_text())
        if "--rewrite" in sys.argv:
            path.write_text(now)
        elif now != path.read_text():
            sys.exit(f"{path.name} plays differently now; look at it with --rewrite")


if __name__ == "__main__":
    main()
