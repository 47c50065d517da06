"""What is asked of transactions and their owners, what is answered, and what the shell must do: plain values.

Kafka producers have a transactional id, which they initialize. Native producers have a producer id, and give each
transaction a name when they begin it (`label`); to the machine that is the transactional id `native:<producer id>`.
An answer is one of the results below, or an error of the tree in `rivven.errors`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from rivven import limits
from rivven.errors import RivvenError
from rivven.model import NO_EPOCH, NO_PRODUCER, Epoch, ProducerId, TopicPartition

NATIVE = "native:"
"""How the transactional ids of native producers begin; nobody else may have such an id."""
EPOCH_LAST = 32_766
"""The last epoch that is given to a producer; the one above it is kept for fencing that producer."""
NO_SEQUENCE = -1


def native_id(producer_id: int) -> str:
    """The transactional id under which a native producer is known; it has one open transaction at most."""
    return f"{NATIVE}{producer_id}"


class TxnStatus(Enum):
    """Where a transaction stands; the values are the numbers in the log, as Kafka tools know them."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        """The name that Kafka tools show: `PrepareCommit`."""
        return self.name.title().replace("_", "")

    @property
    def preparing(self) -> bool:
        """The verdict is in the log, its markers may not be."""
        return self in (TxnStatus.PREPARE_COMMIT, TxnStatus.PREPARE_ABORT)

    @property
    def complete(self) -> bool:
        return self in (TxnStatus.COMPLETE_COMMIT, TxnStatus.COMPLETE_ABORT)

    @property
    def open(self) -> bool:
        """Readers of committed data may still be waiting for it."""
        return self is TxnStatus.ONGOING or self.preparing


@dataclass(frozen=True, slots=True)
class TxnConfig:
    """What the operator may set; times in milliseconds."""

    timeout_ms_max: int = 900_000
    timeout_ms_default: int = 60_000
    id_expiration_ms: int = 7 * 24 * 3600 * 1000
    """After how long a transactional id that nobody uses is forgotten."""
    native_expiration_ms: int = 600_000
    """The same for native producers, which bring a new id as often as they start."""
    owner_expiration_ms: int = 366 * 24 * 3600 * 1000
    """After how long an owner without open transactions is forgotten, and with it what it has decided."""
    expiration_check_ms: int = 60_000
    retry_ms: int = 100
    """When markers that could not be written are tried again."""
    pending_bytes_max: int = limits.TRANSACTION_PENDING_BYTES_MAX
    open_max: int = limits.TRANSACTIONS_OPEN_MAX


# Requests


@dataclass(frozen=True, slots=True)
class InitProducer:
    """Take over a transactional id: whoever had it before can do nothing with it any more."""

    transactional_id: str
    timeout_ms: int
    producer_id: ProducerId = NO_PRODUCER
    """With its epoch: who the producer was until now, when it asks for a new epoch of its own (KIP-360)."""
    producer_epoch: Epoch = NO_EPOCH


@dataclass(frozen=True, slots=True)
class BeginTxn:
    """A native producer begins a transaction, perhaps as part of what an owner will decide."""

    producer_id: ProducerId
    producer_epoch: Epoch
    label: str
    timeout_ms: int | None = None
    """Counted from the last sign of life; None is what the configuration says."""
    owner: str = ""
    owner_epoch: int = NO_EPOCH
    sequence: int = NO_SEQUENCE

    @property
    def transactional_id(self) -> str:
        return native_id(self.producer_id)


@dataclass(frozen=True, slots=True)
class NextLife:
    """A native producer begins its next life: no epoch below this one counts any more, also after a crash.

    Refused with `ConcurrentTransactions` as long as the life before has a transaction that is open or ending; one
    that is open is aborted by that. The refusal comes when it has ended, so that whoever asks can ask again at once.
    """

    producer_id: ProducerId
    producer_epoch: Epoch

    @property
    def transactional_id(self) -> str:
        return native_id(self.producer_id)


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """These partitions are written next. In Kafka's dialect the first of them begins the transaction."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: Epoch
    partitions: tuple[TopicPartition, ...]
    label: str | None = None
    verify_only: bool = False
    """Add nothing; say which of them are missing."""
    version: int = 2
    """Of the transaction protocol that the client speaks; kept for whoever describes the transaction."""


@dataclass(frozen=True, slots=True)
class AddOffsets:
    """Offsets of this group are committed with the transaction."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: Epoch
    group: str
    label: str | None = None
    version: int = 2


@dataclass(frozen=True, slots=True)
class EndTxn:
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: Epoch
    commit: bool
    version: int = 2
    """From 2 on every end takes the producer to its next epoch (EndTxn version 5); before, the epoch stays."""
    label: str | None = None
    wait: bool = True
    """Answer when the markers are written, so that the producer reads what it wrote; else when the verdict is."""


@dataclass(frozen=True, slots=True)
class AbortTxn:
    """An operator ends a transaction; its producer is fenced."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class RegisterOwner:
    """Become the one who decides for this owner id; earlier registrations are fenced, what they left open aborts.

    Whoever joins takes part in the present registration instead, if there is one: it hears what that is.
    """

    owner: str
    join: bool = False


@dataclass(frozen=True, slots=True)
class Decide:
    """Of all transactions begun under the owner and the sequence, these commit and all others abort."""

    owner: str
    owner_epoch: int
    sequence: int
    committing: tuple[tuple[ProducerId, Epoch], ...]


@dataclass(frozen=True, slots=True)
class ForgetOwner:
    """An owner is given up for good, and all that it remembers of its decisions: by an operator, or by itself.

    Refused while a transaction of it is open, and for a registration that is not the present one, if one is named.
    The name must not be used for other work: what was decided under it would not be known any more. What arrives
    late from the work that is done does no harm. A decision finds no owner, or none of those it names open. An
    attempt that registers and begins anew is never decided for, so it aborts in time. An attempt that had committed
    and begins anew repeats records that its partitions know by their numbers.
    """

    owner: str
    owner_epoch: int = NO_EPOCH


OwnerAsk = RegisterOwner | Decide | ForgetOwner
ProducerAsk = AddPartitions | AddOffsets | EndTxn
TxnAsk = InitProducer | BeginTxn | NextLife | ProducerAsk | AbortTxn | OwnerAsk


# Results


@dataclass(frozen=True, slots=True)
class Initialized:
    producer_id: ProducerId
    producer_epoch: Epoch


@dataclass(frozen=True, slots=True)
class Begun:
    transactional_id: str


@dataclass(frozen=True, slots=True)
class Added:
    missing: frozenset[TopicPartition] = frozenset()
    """Those that are not part of the transaction, when only that was asked."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The producer id and epoch with which the producer goes on."""

    producer_id: ProducerId
    producer_epoch: Epoch


@dataclass(frozen=True, slots=True)
class Registered:
    owner_epoch: int
    decided: int
    """The last sequence that was decided; `NO_SEQUENCE` if none was."""


@dataclass(frozen=True, slots=True)
class Decided:
    sequence: int
    committed: tuple[tuple[ProducerId, Epoch], ...] | None
    """What was committed under that sequence, now or when it was decided; None if that was too long ago to know."""
    repeated: bool = False
    """It had been decided before, and nothing has changed."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    owner: str


TxnResult = Initialized | Begun | Added | Ended | Registered | Decided | Forgotten


# What is told on request, at once


@dataclass(frozen=True, slots=True)
class DescribedTxn:
    transactional_id: str
    status: TxnStatus
    producer_id: ProducerId
    producer_epoch: Epoch
    timeout_ms: int
    started_ms: int
    """When the open transaction began; -1 if none is open."""
    updated_ms: int
    partitions: tuple[TopicPartition, ...] = ()
    groups: tuple[str, ...] = ()
    label: str | None = None
    owner: str = ""
    sequence: int = NO_SEQUENCE


@dataclass(frozen=True, slots=True)
class DescribedOwner:
    owner: str
    owner_epoch: int
    decided: int
    open: int
    """How many of its transactions have not ended."""


@dataclass(frozen=True, slots=True)
class OpenInLog:
    """A transaction that a partition's log shows as open."""

    partition: TopicPartition
    producer_id: ProducerId
    first_offset: int = 0
    since_ms: int = field(default=0, compare=False)


# Effects


@dataclass(frozen=True, slots=True)
class TxnAnswer:
    reply_id: int
    result: TxnResult | RivvenError


@dataclass(frozen=True, slots=True)
class TxnPersist:
    """Append these records to the partition of `__transaction_state` that `home` hashes to, in the order in which
    these effects come, as one batch, all or none.

    Then say `persisted(token)`, once they are durable, or `failed(token, error)`. A value of None is a tombstone.
    """

    token: int
    home: str
    """A transactional id or an owner."""
    records: tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Append a commit or abort marker of this producer and epoch to each partition, and to the partition of
    `__consumer_offsets` of each group, whose offsets then count or are forgotten (`Groups.end_transaction`).

    Then say `marked(token)`, once all are durable, or `failed(token, error)` if any is not. A partition that no
    longer exists counts as done. It may come again for markers that are already there, after a crash or a failure: a
    marker of a producer that has nothing open in a partition changes nothing, and the producer can have nothing new
    open, since its next transaction cannot begin before all markers of this one are known to be written.
    """

    token: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: Epoch
    commit: bool
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]


TxnEffect = TxnAnswer | TxnPersist | WriteMarkers
