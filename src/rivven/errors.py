"""One exception tree for the whole package: what went wrong, whether to try again, and the facts of the case.

Each class carries a stable `code`, says whether the same call may succeed later (`retriable`), and renders its
`message` from the keyword facts it was raised with. Protocols map from `code`; people read the message.
Our own mistakes are not here: those are `assert`s.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RivvenError(Exception):
    """Whatever can go wrong that is not our own mistake."""

    code: ClassVar[int] = 0
    retriable: ClassVar[bool] = False
    message: ClassVar[str] = "{reason}"

    def __init_subclass__(cls, *, code: int, retriable: bool = False) -> None:
        assert code not in _BY_CODE, f"code {code} is taken by {_BY_CODE[code].__name__}"
        cls.code = code
        cls.retriable = retriable
        _BY_CODE[code] = cls

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        super().__init__(self.message.format(**facts))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts)


_BY_CODE: dict[int, type[RivvenError]] = {}


def _rebuild(kind: type[RivvenError], facts: dict[str, Any]) -> RivvenError:
    return kind(**facts)


# Bytes and batches


class Malformed(RivvenError, code=1):
    """Bytes that are not what they claim to be: a frame, a batch, a compressed block."""

    message = "malformed {what}: {reason}"


class BatchTooLarge(RivvenError, code=2):
    """A batch above the topic's `max.message.bytes` or above what any segment can hold."""

    message = "a batch of {batch_bytes} bytes is above the limit of {bytes_max}"


class UnsupportedCodec(RivvenError, code=3):
    """A compression codec that the batch format does not know."""

    message = "compression codec {codec} is not known; use none, gzip, snappy, lz4 or zstd"


# Reading and writing a log


class OffsetOutOfRange(RivvenError, code=10):
    """An offset before the log's start or after its end."""

    message = "offset {offset} of {partition} is outside [{start}, {end}]"


class CorruptLog(RivvenError, code=11):
    """Bytes on disk that were acknowledged once and no longer read back as written."""

    message = (
        "{partition}: offsets {first} to {last} are unreadable in {path} at byte {position} ({reason}); "
        "the rest stays readable. Run `rivven log verify` on the data directory"
    )


class DiskFull(RivvenError, code=12, retriable=True):
    """No room for the write; nothing of it was kept, and reads go on."""

    message = "no room on the disk for {wanted_bytes} bytes in {path}; free some space and try again"


class Overloaded(RivvenError, code=13, retriable=True):
    """Too much waits for a sync."""

    message = "{waiting_bytes} bytes wait for a sync; try again in {retry_ms} ms"


class SyncFailed(RivvenError, code=14):
    """The disk refused a sync, so nothing in its cache can be trusted; the process must end."""

    message = "the disk failed to sync {path}: {reason}; this process must end, and recovery will run at start"


class StoreClosed(RivvenError, code=15):
    """The store was closed, or a failed sync has ended it."""

    message = "the store is closed: {reason}"


# Topics and the data directory


class TopicExists(RivvenError, code=20):
    """A topic of that name is there already."""

    message = "topic {topic!r} exists already"


class UnknownTopic(RivvenError, code=21):
    """No such topic, or no such partition of it."""

    message = "there is no {partition}"


class UnknownPartition(UnknownTopic, code=26):
    """A partition number beyond the topic's last."""

    message = "Invalid partition {partition}: must be < {partitions}"


class InvalidPartitions(RivvenError, code=27):
    """A number of partitions that the topic cannot have."""

    message = "{reason}"


class InvalidTopic(RivvenError, code=22):
    """A topic name or partition count outside the rules."""

    message = "invalid topic {topic!r}: {reason}"


class InvalidConfig(RivvenError, code=23):
    """A configuration key nobody knows, or a value outside its rule."""

    message = "invalid {key}: {reason}"


class DirectoryLocked(RivvenError, code=24):
    """Another process has the data directory open."""

    message = "{path} is in use by process {pid}; stop that process, or choose another data directory"


class BadDirectory(RivvenError, code=25):
    """A data directory that this version cannot use as it stands."""

    message = "{path}: {reason}"


# Serving


class NotYet(RivvenError, code=30):
    """A request that this version understands and does not serve."""

    message = "{request} is not served by this version"


class LimitReached(RivvenError, code=31):
    """One more of something of which there is a most."""

    message = "there are {count} {what}, and there may be {most}; {remedy}"


# Consumer groups


class UnknownMember(RivvenError, code=40):
    """A member id that the group does not know: it never joined, left, or was silent for too long."""

    message = "group {group!r} has no member {member!r}; join again"


class IllegalGeneration(RivvenError, code=41):
    """A member that speaks for a generation other than the present one."""

    message = "group {group!r} is at generation {present}, and the request is of {given}; join again"


class RebalanceInProgress(RivvenError, code=42, retriable=True):
    """The group is gathering its members anew."""

    message = "group {group!r} is rebalancing; join again"


class MemberIdRequired(RivvenError, code=43, retriable=True):
    """A new member is given its id first, so that a lost answer leaves nobody behind."""

    message = "join group {group!r} again as member {member!r}"


class FencedInstance(RivvenError, code=44):
    """Another member has taken over this static member's place."""

    message = "another member of group {group!r} has taken over the instance {instance!r}"


class InconsistentGroupProtocol(RivvenError, code=45):
    """A member whose protocols the rest of the group does not share."""

    message = "group {group!r}: {reason}"


class InvalidSessionTimeout(RivvenError, code=46):
    """A session timeout outside the bounds that the broker is configured with."""

    message = "a session timeout of {timeout_ms} ms is outside [{timeout_ms_min}, {timeout_ms_max}]"


class GroupFull(RivvenError, code=47):
    """One more member, group or offset than the limits allow."""

    message = "group {group!r}: {what} would go above the limit of {limit}"


class GroupNotEmpty(RivvenError, code=48):
    """An act that needs a group without members."""

    message = "group {group!r} still has {members} members; stop them first"


class GroupNotFound(RivvenError, code=49):
    """No group of that name, or none of the kind that was asked for."""

    message = "there is no {kind} group {group!r}"


class InvalidGroupRequest(RivvenError, code=50):
    """A group request with a field outside its rule."""

    message = "group {group!r}: {field} {reason}"


class FencedMemberEpoch(RivvenError, code=51):
    """A member whose epoch the group no longer accepts; it must give up its partitions and join again."""

    message = "group {group!r}: member {member!r} is at epoch {present}, and the request is of {given}; join again"


class StaleMemberEpoch(RivvenError, code=52, retriable=True):
    """A commit or fetch of offsets with a member epoch that is not the present one."""

    message = "group {group!r}: member {member!r} is at epoch {present}, and the request is of {given}; try again"


class UnreleasedInstance(RivvenError, code=53):
    """A static member's place that its holder has not left."""

    message = "the instance {instance!r} of group {group!r} is still in use by member {member!r}"


class UnsupportedAssignor(RivvenError, code=54):
    """A server-side assignor that there is none of."""

    message = "there is no assignor {assignor!r}; use one of: {supported}"


class InvalidRegularExpression(RivvenError, code=55):
    """A pattern of topics that cannot be read, or is too large."""

    message = "the pattern {pattern!r} cannot be used: {reason}"


class UnstableOffsetCommit(RivvenError, code=56, retriable=True):
    """Offsets of a transaction that has not ended yet."""

    message = "group {group!r} has offsets of {partition} in an open transaction; try again"


class OffsetMetadataTooLarge(RivvenError, code=57):
    """A text beside a committed offset that is above the limit."""

    message = "{metadata_bytes} bytes of offset metadata are above the limit of {bytes_max}"


class GroupSubscribed(RivvenError, code=58):
    """Offsets of a topic that the group is reading at this moment."""

    message = "group {group!r} is subscribed to {topic!r}; its offsets cannot be deleted now"


# Producers


class OutOfOrderSequence(RivvenError, code=80):
    """A batch whose number does not follow the last one of its producer: one in between is missing."""

    message = "{partition}: producer {producer_id} sent sequence {given} where {due} was due"


class InvalidProducerEpoch(RivvenError, code=81):
    """A batch of a producer's earlier life; a later one has written since."""

    message = "{partition}: producer {producer_id} is at epoch {present}, and the batch is of {given}"


# Transactions


class ProducerFenced(RivvenError, code=82):
    """A producer whose transactional id belongs to a later instance, or was taken from it."""

    message = "transaction {transaction!r}: the producer is at epoch {present}, and the request is of {given}"


class ConcurrentTransactions(RivvenError, code=83, retriable=True):
    """A transaction that is still ending, or another one of the same producer."""

    message = "transaction {transaction!r}: {reason}; try again"


class InvalidTransactionState(RivvenError, code=84):
    """A request that a transaction cannot follow from where it stands."""

    message = "transaction {transaction!r} is {status}: {reason}"


class InvalidProducerIdMapping(RivvenError, code=85):
    """A producer id that does not belong to the transactional id it came with."""

    message = "transaction {transaction!r} does not belong to producer {producer_id}; initialize the producer first"


class InvalidTransactionTimeout(RivvenError, code=86):
    """A transaction timeout outside the bounds that the node sets."""

    message = "a transaction timeout of {timeout_ms} ms is outside 1 to {timeout_ms_max} ms"


class TransactionNotFound(RivvenError, code=87):
    """A transaction that nobody began, or that has long ended."""

    message = "there is no transaction {transaction!r}"


class TransactionAbortable(RivvenError, code=88):
    """What was asked cannot be part of this transaction any more; abort it and begin again."""

    message = "transaction {transaction!r}: {reason}; abort it and begin again"


class PartitionNotInTransaction(TransactionAbortable, code=89):
    """A write to a partition that was not added to the producer's open transaction."""

    message = "transaction {transaction!r}: {partition} was not added to it; add it before writing"


class TransactionTooLarge(TransactionAbortable, code=90):
    """A transaction above what one may hold; it can only be aborted."""

    message = "transaction {transaction!r}: {what} would be above the limit of {limit}; abort it and write less"


class TooManyTransactions(RivvenError, code=91, retriable=True):
    """The node has as many open transactions, transactional ids or owners as it keeps."""

    message = "transaction {transaction!r}: {what} are at the limit of {limit}; end some, or try again later"


class InvalidTransactionRequest(RivvenError, code=92):
    """A request about a transaction with a field that cannot be."""

    message = "transaction {transaction!r}: the {field} {reason}"


class OwnerNotFound(RivvenError, code=93):
    """An owner of transactions that has not been registered."""

    message = "there is no owner {owner!r} at epoch {epoch}; register it first"


class OwnerFenced(RivvenError, code=94):
    """An earlier registration of an owner; a later one has taken over."""

    message = "owner {owner!r} is registered at epoch {present}, and the request is of {given}; a later run took over"


class AlreadyDecided(RivvenError, code=95):
    """A transaction that comes too late for the decision it would be part of."""

    message = "owner {owner!r} has decided sequence {decided}, so nothing can be begun under {given}"


class DecisionRefused(RivvenError, code=96):
    """A decision that names a transaction which cannot be committed; nothing was decided."""

    message = "owner {owner!r}, sequence {sequence}: producer {producer_id} (epoch {epoch}) {reason}; nothing changed"
