"""What all groups of a node use together: configuration, chance, deadlines, and the topics that there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from .group_values import GroupConfig
from .pattern import Pattern
from .timers import Timers

SESSION = "session"
"""The deadline by which a member must have shown that it is there."""
PATTERNS_KEPT = 1_000


@dataclass(slots=True)
class Shared:
    config: GroupConfig
    rng: Random
    timers: Timers = field(default_factory=Timers)
    tokens: int = 0
    topics: dict[str, int] = field(default_factory=dict)
    """How many partitions each topic has."""
    topics_version: int = 0
    _patterns: dict[str, Pattern] = field(default_factory=dict)
    _matching: dict[str, frozenset[str]] = field(default_factory=dict)

    def next_token(self) -> int:
        self.tokens += 1
        return self.tokens

    def change_topics(self, topics: Mapping[str, int]) -> None:
        if topics != self.topics:
            self.topics = dict(topics)
            self.topics_version += 1
            self._matching.clear()

    def pattern(self, text: str) -> Pattern:
        """Raises for one that cannot be read. Those in use are remembered, up to a limit."""
        found = self._patterns.get(text)
        if found is None:
            if len(self._patterns) >= PATTERNS_KEPT:
                self._patterns.clear()
                self._matching.clear()
            found = self._patterns[text] = Pattern(text)
        return found

    def matching(self, text: str) -> frozenset[str]:
        """The topics whose whole name the pattern matches; internal ones are nobody's catch."""
        found = self._matching.get(text)
        if found is None:
            pattern = self.pattern(text)
            names = (name for name in self.topics if not name.startswith("__"))
            found = self._matching[text] = frozenset(name for name in names if pattern.matches(name))
        return found
