"""What is asked of a group, what is answered, and what the shell must do: values without behaviour.

Both dialects make the same requests. Where they differ a field says so, and its default is what a Kafka client of
the newest version means. An answer is one of the results below, or an error of the tree in `rivven.errors`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from rivven.errors import RivvenError
from rivven.model import NO_EPOCH, NO_PRODUCER, Epoch, ProducerId, TopicPartition

from .offsets import CommittedOffset

NO_GENERATION = -1
"""The generation of whoever commits without being a member."""


class Phase(Enum):
    """Where a group stands; the values are the names that Kafka tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """What the operator may set; times in milliseconds."""

    initial_rebalance_delay_ms: int = 3_000
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    members_max: int = 1_000
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    offsets_check_ms: int = 600_000
    """How often offsets are looked through for those that have expired."""
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_ms: int = 5_000


# Requests


@dataclass(frozen=True, slots=True)
class Join:
    group: str
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    protocol_type: str = "consumer"
    protocols: tuple[tuple[str, bytes], ...] = ()
    """In order of preference: the protocol's name, and what the member tells the leader under it."""
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    id_required: bool = True
    """A new member is sent back with its id first (Kafka version 4 and above)."""
    adopt_id: bool = False
    """A member id that the group does not know is taken as it comes, instead of being refused."""
    can_skip_assignment: bool = True
    """A leader that restarts may be told that nothing has to be assigned (Kafka version 9 and above)."""
    initial_delay_ms: int | None = None
    """For how long a first member waits for company; None is what the configuration says."""
    members_to_all: bool = False
    """Every member is told who the others are, not the leader alone."""


@dataclass(frozen=True, slots=True)
class Sync:
    group: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    known_members_only: bool = False
    """Refuse an assignment to somebody who is not in the group, rather than pass over it."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    group: str
    generation: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    group: str
    members: tuple[tuple[str, str | None], ...]
    """Member id and instance id of each; of a static member the instance id is enough."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """The whole of the consumer protocol (KIP-848). None: as I said before."""

    group: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    """A regular expression that topic names match from end to end; an empty one takes it back."""
    assignor: str | None = None
    owned: frozenset[TopicPartition] | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    group: str
    offsets: tuple[tuple[TopicPartition, CommittedOffset], ...]
    member_id: str = ""
    instance_id: str | None = None
    generation: int = NO_GENERATION
    """Of the classic protocol; the member's epoch in the consumer protocol."""
    unchecked: bool = False
    """Take it whoever asks: the native protocol ties commits to no member."""
    producer_id: ProducerId = NO_PRODUCER
    """Of the transaction that these offsets are part of; they count when it commits."""
    producer_epoch: Epoch = NO_EPOCH


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    group: str
    partitions: tuple[TopicPartition, ...] | None = None
    """None is all that the group has."""
    member_id: str | None = None
    member_epoch: int = -1
    stable_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    group: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ForgetTopic:
    """The topic is gone, and what the group committed for it goes too, whether it reads it or not."""

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    group: str


# Results


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Synced:
    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class Alive:
    """A heartbeat that found everything in order."""


@dataclass(frozen=True, slots=True)
class LeftMember:
    member_id: str
    instance_id: str | None
    error: RivvenError | None = None


@dataclass(frozen=True, slots=True)
class Left:
    members: tuple[LeftMember, ...]


@dataclass(frozen=True, slots=True)
class ConsumerAlive:
    member_id: str
    member_epoch: int
    heartbeat_ms: int
    assignment: frozenset[TopicPartition] | None
    """None: as you know it."""


@dataclass(frozen=True, slots=True)
class Committed:
    errors: dict[TopicPartition, RivvenError] = field(default_factory=dict)
    """The partitions whose offsets were refused; all others are kept."""


@dataclass(frozen=True, slots=True)
class Fetched:
    offsets: dict[TopicPartition, CommittedOffset | None]
    """None where nothing was committed."""
    unstable: frozenset[TopicPartition] = frozenset()
    """Those that an open transaction is about to change, when stable ones were asked for."""


@dataclass(frozen=True, slots=True)
class Deleted:
    errors: dict[TopicPartition, RivvenError] = field(default_factory=dict)


Result = Joined | Synced | Alive | Left | ConsumerAlive | Committed | Deleted


# What is told on request, at once


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group: str
    protocol_type: str
    phase: Phase
    kind: str
    """`classic` or `consumer`."""


@dataclass(frozen=True, slots=True)
class DescribedMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    group: str
    phase: Phase
    protocol_type: str = ""
    protocol: str = ""
    generation: int = 0
    leader: str = ""
    members: tuple[DescribedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedConsumer:
    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    member_epoch: int
    topics: tuple[str, ...]
    pattern: str | None
    assignment: frozenset[TopicPartition]
    target: frozenset[TopicPartition]
    kind: str = "consumer"
    """The protocol that the member speaks: `classic` or `consumer`."""


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    group: str
    phase: Phase
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...] = ()


# Effects


@dataclass(frozen=True, slots=True)
class Answer:
    reply_id: int
    result: Result | RivvenError


@dataclass(frozen=True, slots=True)
class Persist:
    """Append these records to the group's partition of `__consumer_offsets`, as one batch, all or none.

    Then say `persisted(token)`, once they are durable, or `failed(token, error)`. A value of None is a tombstone.
    With a producer id the batch is part of that producer's transaction.
    """

    token: int
    group: str
    records: tuple[tuple[bytes, bytes | None], ...]
    producer_id: ProducerId = NO_PRODUCER
    producer_epoch: Epoch = NO_EPOCH


Effect = Answer | Persist
