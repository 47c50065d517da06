"""The table of groups in a test: its answers are kept, and its writes are performed."""

from __future__ import annotations

from random import Random

from rivven.coordinator import Answer, GroupConfig, Groups, Persist
from rivven.model import ProducerId

CONFIG = GroupConfig(initial_rebalance_delay_ms=0)


class Table:
    """Groups whose writes are performed at once, or kept back."""

    def __init__(self, config: GroupConfig = CONFIG) -> None:
        self.groups = Groups(config, Random(7))
        self.groups.recall(0)
        self.log: list[tuple[bytes, bytes | None, ProducerId]] = []
        self.answers: dict[int, object] = {}
        self.kept_back: list[Persist] | None = None
        self.replies = 0

    def ask(self, request, now_ms: int = 0):
        """The answer, or None where it is still to come."""
        self.replies += 1
        reply_id = self.replies
        self.perform(self.groups.ask(request, reply_id, now_ms), now_ms)
        return self.answers.get(reply_id)

    def perform(self, effects, now_ms: int = 0) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                self.answers[effect.reply_id] = effect.result
            elif self.kept_back is not None:
                self.kept_back.append(effect)
            else:
                self.log += [(key, value, effect.producer_id) for key, value in effect.records]
                self.perform(self.groups.persisted(effect.token, now_ms), now_ms)

    def replayed(self) -> Groups:
        groups = Groups(CONFIG, Random(8))
        for key, value, producer_id in self.log:
            groups.replay(key, value, producer_id)
        groups.recall(0)
        return groups
