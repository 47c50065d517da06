"""How large a number may be that a command is given. Beyond that the parser refuses it, by its option and its range.

What passes here can be said on the wire, to Spark and to the disk; whether a broker agrees is its own affair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.main import get_click_type
from typer.models import OptionInfo

from rivven.limits import BATCH_BYTES_MAX, NUMBER_MAX, PARTITIONS_PER_TOPIC_MAX

PARTITIONS_MAX = PARTITIONS_PER_TOPIC_MAX
PARTITION_MAX = PARTITIONS_MAX - 1
VALUE_BYTES_MAX = BATCH_BYTES_MAX
LINGER_MS_MAX = 60_000
POLL_MS_MAX = 30_000
"""A broker lets no request wait for longer."""
ROWS_MAX = 2**31 - 2
"""Spark counts rows in 32 bits, and is asked for one more, to know whether there are more."""


if TYPE_CHECKING:
    from click import IntRange
else:
    IntRange = type(get_click_type(annotation=int, parameter_info=OptionInfo(min=0)))
    """The one that typer knows: newer versions have a click of their own, and take another for a function."""


class Whole(IntRange):
    """A number that ends only where the wire's do; that is said to whoever goes beyond, and not on a page of help."""

    def _describe_range(self) -> str:
        return f"x>={self.min}" if self.min else ""

    def convert(self, value: Any, *where: Any) -> Any:
        return IntRange(self.min, self.max).convert(value, *where)


FROM_0, FROM_1 = Whole(0, NUMBER_MAX), Whole(1, NUMBER_MAX)
"""An offset; a count or a rate."""
