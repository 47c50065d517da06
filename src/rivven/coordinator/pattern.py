"""Patterns of topic names: regular expressions that are matched in time proportional to the name, whoever wrote them.

The pattern comes from a client and runs in the broker, so it never backtracks: it becomes an automaton whose states
are found as they are needed and remembered up to a limit. What it can say is what RE2 and its kin agree on: letters,
`.`, classes, escapes, groups, `|`, `*`, `+`, `?`, `{m,n}`, `^` and `$`. There are no back references and no looking
around. A name must match from its first character to its last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rivven import limits
from rivven.errors import InvalidRegularExpression

Ranges = tuple[tuple[int, int], ...]
_ANY: Ranges = ((0, 9), (11, 0x10FFFF))
_DIGITS: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32))
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_DEPTH_MAX = 32


@dataclass(slots=True)
class _State:
    """Where the automaton can be: it eats a character of `ranges` and goes to `then`, or goes to `free` at once.

    The way to `free` may be open before the first character alone, or after the last one alone.
    """

    ranges: Ranges = ()
    then: int = -1
    free: list[int] = field(default_factory=list)
    only_at: str = ""


class Pattern:
    def __init__(self, text: str) -> None:
        self.text = text
        builder = _Builder(text)
        self._states, self._first, self._last = builder.build()
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        at = self._reach([self._first], "^")
        for character in name:
            step = self._steps.get((at, character))
            at = self._step(at, character) if step is None else step
            if not at:
                return False
        return self._last in self._reach(at, "$" if name else "^$")

    def _step(self, at: frozenset[int], character: str) -> frozenset[int]:
        code = ord(character)
        states = self._states
        found = [states[one].then for one in at if any(low <= code <= high for low, high in states[one].ranges)]
        if len(self._steps) >= limits.PATTERN_STATES_MAX:
            self._steps.clear()
        step = self._steps[at, character] = self._reach(found)
        return step

    def _reach(self, start: Iterable[int], here: str = "") -> frozenset[int]:
        """All that can be reached without a character; `here` says which ends of the name this is."""
        found: set[int] = set()
        left = list(start)
        while left:
            if (one := left.pop()) not in found:
                found.add(one)
                left += self._states[one].free if self._states[one].only_at in here else ()
        return frozenset(found)


class _Builder:
    """Reads the pattern once, left to right; every part becomes a pair of states, its way in and its way out."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._states: list[_State] = []
        if len(text) > limits.PATTERN_CHARS_MAX:
            raise self._refuse(f"it is longer than {limits.PATTERN_CHARS_MAX} characters")

    def build(self) -> tuple[list[_State], int, int]:
        first, last = self._choice()
        if self._at < len(self._text):
            raise self._refuse(f"there is a ) at {self._at} that closes nothing")
        return self._states, first, last

    def _refuse(self, reason: str) -> InvalidRegularExpression:
        return InvalidRegularExpression(pattern=self._text[: limits.PATTERN_CHARS_MAX], reason=reason)

    def _new(self, ranges: Ranges = (), then: int = -1) -> int:
        if len(self._states) >= limits.PATTERN_STATES_MAX:
            raise self._refuse("it is too large when its repetitions are written out")
        self._states.append(_State(ranges, then))
        return len(self._states) - 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._refuse("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self) -> tuple[int, int]:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._refuse(f"it nests deeper than {_DEPTH_MAX}")
        first, last = self._new(), self._new()
        while True:
            begin, end = self._sequence()
            self._states[first].free.append(begin)
            self._states[end].free.append(last)
            if self._peek() != "|":
                break
            self._at += 1
        self._depth -= 1
        return first, last

    def _sequence(self) -> tuple[int, int]:
        first = last = self._new()
        while self._peek() not in ("", "|", ")"):
            start_at = self._at
            begin, end = self._atom()
            begin, end = self._repeated(start_at, begin, end)
            self._states[last].free.append(begin)
            last = end
        return first, last

    def _atom(self) -> tuple[int, int]:
        start_at, character = self._at, self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._eats(self._class())
        if character == ".":
            return self._eats(_ANY)
        if character == "\\":
            return self._eats(self._escape())
        if character in "^$":
            return self._end(character)
        if character in "*+?{":
            raise self._refuse(f"the {character} at {start_at} repeats nothing")
        return self._eats(((ord(character), ord(character)),))

    def _end(self, character: str) -> tuple[int, int]:
        begin, end = self._new(), self._new()
        self._states[begin].only_at = character
        self._states[begin].free.append(end)
        return begin, end

    def _eats(self, ranges: Ranges) -> tuple[int, int]:
        end = self._new()
        return self._new(ranges, end), end

    def _group(self) -> tuple[int, int]:
        if self._peek() == "?":
            if self._text[self._at : self._at + 2] != "?:":
                raise self._refuse(f"of (? groups there is (?: alone, at {self._at}")
            self._at += 2
        inner = self._choice()
        if self._at >= len(self._text) or self._next() != ")":
            raise self._refuse("a ( is never closed")
        return inner

    def _repeated(self, start_at: int, begin: int, end: int) -> tuple[int, int]:
        sign = self._peek()
        if not sign or sign not in "*+?{":
            return begin, end
        self._at += 1
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign) or self._bounds()
        if self._peek() == "?":
            self._at += 1  # how eagerly it repeats makes no difference to whether it matches
        if self._peek() and self._peek() in "*+?{":
            raise self._refuse(f"there are two repetitions in a row at {self._at}")
        return self._unrolled((start_at, self._at), begin, end, least, most)

    def _bounds(self) -> tuple[int, int | None]:
        close = self._text.find("}", self._at)
        least, comma, most = self._text[self._at : max(close, self._at)].partition(",")
        if close < 0 or not least.isdecimal() or (most and not most.isdecimal()) or len(least + most) > 6:
            raise self._refuse(f"the repetition at {self._at} is not {{m}}, {{m,}} or {{m,n}}")
        self._at = close + 1
        bounds = int(least), int(most) if most else (None if comma else int(least))
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise self._refuse(f"the repetition before {self._at} ends below its start")
        return bounds

    def _unrolled(self, span: tuple[int, int], begin: int, end: int, least: int, most: int | None) -> tuple[int, int]:
        """The part `least` times, then as often as it may: each copy is read from the text again."""
        first = last = self._new()
        for _ in range(least - (most is None and least > 0)):
            begin, end = self._chain(last, begin, end, span)
            last = end
            begin = end = -1
        if most is None:
            return self._looped(span, first, last, begin, end, at_least_once=least > 0)
        exits = [last]
        for _ in range(most - least):
            begin, end = self._chain(last, begin, end, span)
            last = end
            begin = end = -1
            exits.append(last)
        out = self._new()
        for one in exits:
            self._states[one].free.append(out)
        return first, out

    def _chain(self, last: int, begin: int, end: int, span: tuple[int, int]) -> tuple[int, int]:
        if begin < 0:
            begin, end = self._read_again(span)
        self._states[last].free.append(begin)
        return begin, end

    def _looped(
        self, span: tuple[int, int], first: int, last: int, begin: int, end: int, *, at_least_once: bool
    ) -> tuple[int, int]:
        begin, end = self._chain(last, begin, end, span)
        self._states[end].free.append(begin)
        if at_least_once:
            return first, end
        out = self._new()
        self._states[last].free.append(out)
        self._states[end].free.append(out)
        return first, out

    def _read_again(self, span: tuple[int, int]) -> tuple[int, int]:
        after, self._at = self._at, span[0]
        part = self._atom()
        self._at = after
        return part

    def _class(self) -> Ranges:
        negated = self._peek() == "^"
        self._at += negated
        found: list[tuple[int, int]] = []
        first = True
        while first or self._peek() != "]":
            first = False
            low = self._class_item()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", "") and len(low) == 1:
                self._at += 1
                high = self._class_item()
                if len(high) != 1 or high[0][0] < low[0][0]:
                    raise self._refuse(f"the range before {self._at} ends below its start")
                low = ((low[0][0], high[0][0]),)
            found += low
        self._at += 1
        return _complement(found) if negated else tuple(found)

    def _class_item(self) -> Ranges:
        character = self._next()
        if character == "\\":
            return self._escape()
        if character == "[" and self._peek() == ":":
            raise self._refuse("named classes such as [:alpha:] are not served; write the characters")
        return ((ord(character), ord(character)),)

    def _escape(self) -> Ranges:
        character = self._next()
        if character in _CLASSES:
            return _CLASSES[character]
        if character.lower() in _CLASSES:
            return _complement(list(_CLASSES[character.lower()]))
        if character in _CONTROLS:
            return ((ord(_CONTROLS[character]), ord(_CONTROLS[character])),)
        if character.isalnum():
            raise self._refuse(f"the escape \\{character} is not served")
        return ((ord(character), ord(character)),)


def _complement(ranges: list[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    start = 0
    for low, high in sorted(ranges):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return (*found, (start, 0x10FFFF))
