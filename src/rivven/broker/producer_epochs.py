"""Which epoch each native producer is at: what it asked for last, or what its batches say.

Nothing is kept on disk for this. The epoch that a producer wrote with stands in the partitions it wrote to and in its
transaction, and an epoch that nobody wrote with fences nobody.
Invariant: an epoch is above every one that its producer was ever seen with in the logs.
"""

from __future__ import annotations

from rivven.coordinator import EPOCH_LAST, native_id
from rivven.errors import ProducerFenced, TransactionNotFound
from rivven.limits import PRODUCERS_PER_PARTITION_MAX
from rivven.log import Store
from rivven.model import NO_EPOCH

from .producer_ids import ProducerIds
from .transactions import TransactionKeeper

REMEMBERED_MAX = PRODUCERS_PER_PARTITION_MAX


class ProducerEpochs:
    def __init__(self, store: Store, ids: ProducerIds, transactions: TransactionKeeper) -> None:
        self._store = store
        self._ids = ids
        self._transactions = transactions
        self._seen: dict[int, int] = {}
        """The one that was asked for longest ago comes first."""

    def init(self, producer_id: int | None) -> tuple[int, int]:
        """The next life of a producer, or the first one of a new producer: its id and epoch."""
        if producer_id is None:
            return self._remember(self._unused(), 0)
        # An operator may have fenced it since it was seen.
        known = max((self._known(producer_id), *self._in_transaction(producer_id)))
        if known >= EPOCH_LAST:
            return self._remember(self._unused(), 0)
        return self._remember(producer_id, known + 1)

    def check(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer is known; raises if a later life of it is. A higher epoch than the known one counts."""
        known = self._known(producer_id)
        if known == NO_EPOCH:
            return False
        if epoch < known:
            raise ProducerFenced(transaction=native_id(producer_id), present=known, given=epoch)
        self._remember(producer_id, epoch)
        return True

    def _known(self, producer_id: int) -> int:
        """Its epoch; `NO_EPOCH` for a producer that nobody can have heard of."""
        if (seen := self._seen.get(producer_id)) is not None:
            return seen
        given = 0 if self._ids.may_have_given(producer_id) else NO_EPOCH
        return max((given, *self._written(producer_id)))

    def _written(self, producer_id: int) -> list[int]:
        """Each epoch that is on record for a producer."""
        rows = [log.facts.producers.get(producer_id) for log in self._store.logs]
        return [row.epoch for row in rows if row is not None] + self._in_transaction(producer_id)

    def _in_transaction(self, producer_id: int) -> list[int]:
        try:
            return [self._transactions.describe(native_id(producer_id)).producer_epoch]
        except TransactionNotFound:
            return []

    def _remember(self, producer_id: int, epoch: int) -> tuple[int, int]:
        self._seen.pop(producer_id, None)
        self._seen[producer_id] = epoch
        if len(self._seen) > REMEMBERED_MAX:
            del self._seen[next(iter(self._seen))]
        return producer_id, epoch

    def _unused(self) -> int:
        """Producers may bring ids that nobody gave them; and older clients take 0 for none."""
        while (producer_id := self._ids.next()) == 0 or producer_id in self._seen or self._written(producer_id):
            continue
        return producer_id
