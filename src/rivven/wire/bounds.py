"""How long a name, a list or a frame may be on the wire, and the words in which a longer one is refused.

A list inside a list is counted over the whole message, so that what a frame decodes to stays in proportion to
its bytes. The words are part of the protocol: clients print them.
"""

from __future__ import annotations

from rivven.errors import Malformed
from rivven.limits import KIB, MIB, PARTITIONS_MAX, READ_BYTES_MAX

FRAME_HEADER_BYTES = 5
"""The format byte and the correlation id, which the length in front of a frame counts."""

REQUEST_BYTES_MAX = 10 * MIB
REPLY_BYTES_MAX = 10 * MIB
"""What an answer to a request of the first forty may have; whoever answers with messages cuts them to fit."""
BATCHES_REPLY_BYTES_MAX = READ_BYTES_MAX + 4 * MIB
"""The same for `FetchedBatches`, which only a peer that asked for batches ever sees."""
ANSWER_BYTES_MAX = 100 * MIB
"""What a client takes from a server."""

NAME_BYTES_MAX = 256
SECRET_BYTES_MAX = 64 * KIB
"""A password, or one message of a SASL exchange."""
LIST_MAX = 10_000
MESSAGES_MAX = 100_000
NESTED_MAX = PARTITIONS_MAX
"""Entries of all inner lists of one message together: the partitions of an assignment, say."""
HEADERS_MAX = 1_000_000

assert REPLY_BYTES_MAX <= BATCHES_REPLY_BYTES_MAX <= ANSWER_BYTES_MAX
assert LIST_MAX <= MESSAGES_MAX <= NESTED_MAX <= HEADERS_MAX


def too_long(field: str, found: int, most: int) -> Malformed:
    return invalid(f"{field} exceeds max length ({found} > {most})")


def too_many(field: str, found: int, most: int) -> Malformed:
    return invalid(f"{field} list exceeds max length ({found} > {most})")


def invalid(reason: str) -> Malformed:
    """A message that reads well and may not be."""
    return Malformed(what="message", reason=f"Invalid message format: {reason}")


def unreadable(reason: str) -> Malformed:
    """Bytes that do not read as a message."""
    return Malformed(what="message", reason=f"Serialization error: {reason}")
