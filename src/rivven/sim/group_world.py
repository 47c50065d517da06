"""A broker with a consumer group whose members come, go, die and are cut off, through the faults of the plain world.

When all is calm the group must become whole: every member has a seat in one generation, and every partition a reader.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rivven.broker import BrokerConfig
from rivven.wire import Format

from .broker import BrokerWorld
from .group_member import Member
from .producing import Producer
from .reading import Auditor
from .stage import Actor, Player

GROUP = "readers"


class GroupWorld(BrokerWorld):
    name = "groups"
    topics: ClassVar[dict[str, int]] = {"orders": 3, "clicks": 1}

    def _broker_config(self) -> BrokerConfig:
        config = super()._broker_config()
        return replace(config, groups=replace(config.groups, session_timeout_ms_min=100))

    def _cast(self) -> list[Actor]:
        stage = self.stage
        self.members = [Member(name, stage, GROUP, stage.partitions) for name in ("anna", "bert", "cleo", "dora")]
        return [
            # Protobuf has no words for groups.
            *(Player(member, stage, self._client(member.name, Format.POSTCARD)) for member in self.members),
            *(Producer(name, stage, self._client(name)) for name in ("p", "q")),
            Auditor(stage, self._client("auditor"), [GROUP]),
        ]

    def _recovered(self) -> None:
        for member in self.members:
            member.calm = True
        self._require("the group becomes whole", self._whole)

    def _whole(self) -> bool:
        seats = [member.seat for member in self.members if member.seat is not None]
        return (
            len(seats) == len(self.members)
            and len({seat.generation for seat in seats}) == 1
            and {partition for seat in seats for partition in seat.partitions} == set(self.stage.partitions)
        )
