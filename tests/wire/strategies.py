"""Any message at all, drawn by the shape of its class."""

from __future__ import annotations

from functools import cache

from hypothesis import strategies as st

from rivven.wire.requests import REQUESTS
from rivven.wire.responses import RESPONSES
from rivven.wire.schema import Message, Shape, shape


def any_message(kinds: tuple[type[Message], ...]) -> st.SearchStrategy[Message]:
    return st.one_of([message(kind) for kind in kinds])


@cache
def message(kind: type[Message]) -> st.SearchStrategy[Message]:
    return _drawn(shape(kind))


def _drawn(layout: Shape) -> st.SearchStrategy:
    match layout.kind:
        case "struct":
            return st.builds(layout.type, *map(_drawn, layout.parts))
        case "number" | "tail":
            return st.integers(layout.width.least, layout.width.most) | st.integers(0, 200)
        case "flag":
            return st.booleans()
        case "text":
            return st.text(max_size=12)
        case "octets" | "opaque":
            return st.binary(max_size=12)
        case "option":
            return st.none() | _drawn(layout.parts[0])
        case "many":
            return st.lists(_drawn(layout.parts[0]), max_size=4).map(tuple)
        case "table":
            return st.dictionaries(_drawn(layout.parts[0]), _drawn(layout.parts[1]), max_size=4)
    raise AssertionError(layout.kind)


any_request = any_message(REQUESTS)
any_response = any_message(RESPONSES)
