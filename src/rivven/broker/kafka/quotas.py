"""Quotas in Kafka's words: of a user or a client, by name or for all that have none of their own.

What only the other dialect can say is not told here: limits of groups, and the one limit for everybody. A limit of
requests is a number a second; Kafka's `request_percentage` is of a thread's time, which nobody measures, so that it
is refused, and ours goes by its own name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rivven.broker.admit import Limit
from rivven.coordinator import CONSUME, PRODUCE, REQUEST
from rivven.wire.kafka import Error
from rivven.wire.kafka.made import alter_client_quotas as alter
from rivven.wire.kafka.made import describe_client_quotas as describe

from .dialect import Asked, Handler
from .refusals import REFUSALS, Refused, told

if TYPE_CHECKING:
    from rivven.broker.broker import Broker

DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 48, 49
OURS: Final = {"producer_byte_rate": PRODUCE, "consumer_byte_rate": CONSUME, "request_rate": REQUEST}
"""Our names for the keys of quotas, by those that clients use."""
KAFKAS: Final = {ours: kafkas for kafkas, ours in OURS.items()}
TYPES: Final = ("user", "client-id")
IP: Final = "ip"
EXACT, DEFAULT, ANY = 0, 1, 2
LIMIT_MAX: Final = 2**53
"""Above this a number that travels as a double is no longer the one that was meant."""


class QuotaRequests:
    def __init__(self, broker: Broker) -> None:
        self._admission = broker.admission

    def handlers(self) -> dict[int, Handler]:
        return {
            DESCRIBE_CLIENT_QUOTAS: self._describe_client_quotas,
            ALTER_CLIENT_QUOTAS: self._alter_client_quotas,
        }

    # Telling

    def _describe_client_quotas(
        self, request: describe.DescribeClientQuotasRequest, _: Asked
    ) -> describe.DescribeClientQuotasResponse:
        try:
            _check_filter(request.components)
        except Refused as refusal:
            code, text = told(refusal)
            return describe.DescribeClientQuotasResponse(error_code=code, error_message=text, entries=[])
        entries = [
            describe.EntryData([describe.EntityData(kind, name)], _values(limits))
            for (kind, name), limits in sorted(self._admission.stored().items(), key=_by_name)
            if kind in TYPES and _fits(kind, name, request)
        ]
        return describe.DescribeClientQuotasResponse(error_message=None, entries=entries)

    # Changing

    def _alter_client_quotas(
        self, request: alter.AlterClientQuotasRequest, _: Asked
    ) -> alter.AlterClientQuotasResponse:
        """What is right is changed together, with one write, or not at all if there is no room for it."""
        outcomes: list[tuple[Error, str | None]] = []
        changes: list[Limit] = []
        for entry in request.entries:
            try:
                changes += _limits(entry)
                outcomes.append((Error.NONE, None))
            except Refused as refusal:
                outcomes.append(told(refusal))
        if changes and not request.validate_only:
            try:
                self._admission.alter(changes)
            except REFUSALS as refusal:
                outcomes = [told(refusal) if code is Error.NONE else (code, text) for code, text in outcomes]
        return alter.AlterClientQuotasResponse(
            entries=[
                alter.ResponseEntryData(*outcome, entry.entity)
                for outcome, entry in zip(outcomes, request.entries, strict=True)
            ]
        )


def _by_name(item: tuple[tuple[str, str | None], dict[str, int]]) -> tuple[str, bool, str]:
    (kind, name), _ = item
    return kind, name is not None, name or ""


def _values(limits: dict[str, int]) -> list[describe.ValueData]:
    return [describe.ValueData(KAFKAS[key], float(value)) for key, value in sorted(limits.items())]


def _check_filter(components: Sequence[describe.ComponentData]) -> None:
    seen: set[str] = set()
    for each in components:
        if each.entity_type not in (*TYPES, IP):
            raise _refused(f"there is no entity type {each.entity_type!r}; use {' or '.join(TYPES)}")
        if each.entity_type in seen:
            raise _refused(f"the filter names {each.entity_type} more than once")
        seen.add(each.entity_type)
        if each.match_type not in (EXACT, DEFAULT, ANY):
            raise _refused(f"match type {each.match_type} is none of 0 (a name), 1 (the default), 2 (any)")
        if (each.match_type == EXACT) != (each.match is not None):
            raise _refused(f"{each.entity_type}: a name goes with match type {EXACT}, and only with that")
    if IP in seen and len(seen) > 1:
        raise _refused("an address is an entity by itself, without a user or a client")


def _fits(kind: str, name: str | None, request: describe.DescribeClientQuotasRequest) -> bool:
    """Whether an entity, which has one component, has every one that is asked for; and if strictly, no other."""
    if not request.components:
        return not request.strict
    if len(request.components) > 1:
        return False
    (wanted,) = request.components
    if wanted.entity_type != kind:
        return False
    return wanted.match_type == ANY or name == wanted.match


def _limits(entry: alter.RequestEntryData) -> list[Limit]:
    kind, name = _entity(entry.entity)
    return [Limit(kind, name, *_change(operation)) for operation in entry.ops]


def _entity(components: Iterable[alter.EntityData]) -> tuple[str, str | None]:
    found = [(each.entity_type, each.entity_name) for each in components]
    kinds = [kind for kind, _ in found]
    if not found:
        raise _refused(f"the entity is empty; name {' or '.join(TYPES)}")
    if IP in kinds:
        raise _refused("quotas by address are not kept; use the node's limits for each address")
    if unknown := [kind for kind in kinds if kind not in TYPES]:
        raise _refused(f"there is no entity type {unknown[0]!r}; use {' or '.join(TYPES)}")
    if len(found) > 1:
        raise _refused("a quota is of a user or of a client, not of both together; set one for each")
    kind, name = found[0]
    if name == "":
        raise _refused(f"the {kind} has an empty name; give one, or null for the default")
    return kind, name


def _change(operation: alter.OpData) -> tuple[str, int | None]:
    key = OURS.get(operation.key)
    if key is None:
        instead = "; set request_rate, in requests a second" if operation.key == "request_percentage" else ""
        raise _refused(f"there is no quota {operation.key!r}; the keys are {', '.join(OURS)}{instead}")
    if operation.remove:
        return key, None
    value = operation.value
    if not math.isfinite(value) or not 1 <= value <= LIMIT_MAX or value != round(value):
        raise _refused(f"{operation.key} is a whole number from 1 to {LIMIT_MAX}, not {value}")
    return key, int(value)


def _refused(text: str) -> Refused:
    return Refused(Error.INVALID_REQUEST, text)
