"""Configuration in Kafka's words: told whole, with where each value is from, and changed topic by topic.

A node's own settings are told and not changed: they are given to it when it starts. Each resource of a request is
decided by itself, all of its keys or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from rivven.log import KEYS as OUR_KEYS
from rivven.log import check_name
from rivven.wire.kafka import Error
from rivven.wire.kafka.made import alter_configs as replace
from rivven.wire.kafka.made import incremental_alter_configs as alter
from rivven.wire.kafka.made.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from rivven.wire.kafka.made.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

from .dialect import Asked, Handler
from .keys import FIXED, Keys, Kind, Setting, kind_of
from .refusals import REFUSALS, Refused, told

if TYPE_CHECKING:
    from rivven.broker.broker import Broker

DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS, LIST_CONFIG_RESOURCES = 32, 33, 44, 74
TYPES_NAMED_FROM: Final = 1
"""The first version of ListConfigResources that says which types it wants; before, it was of clients' metrics."""


class Resource(IntEnum):
    """What has a configuration, by Kafka's numbers."""

    TOPIC = 2
    NODE = 4
    NODE_LOGGERS = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Change(IntEnum):
    """What is done to one key, by Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


ByType = tuple[int, str]
"""A resource: its type and its name."""


class ConfigRequests:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics = broker.topics
        self._keys = Keys(broker)
        self._node = str(broker.config.broker_id)

    def handlers(self) -> dict[int, Handler]:
        return {
            DESCRIBE_CONFIGS: self._describe_configs,
            ALTER_CONFIGS: self._alter_configs,
            INCREMENTAL_ALTER_CONFIGS: self._incremental_alter_configs,
            LIST_CONFIG_RESOURCES: self._list_config_resources,
        }

    # Telling

    def _describe_configs(self, request: DescribeConfigsRequest, _: Asked) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(results=[self._described(each, request) for each in request.resources])

    def _described(self, resource: DescribeConfigsResource, request: DescribeConfigsRequest) -> DescribeConfigsResult:
        kind, name = resource.resource_type, resource.resource_name
        try:
            settings = self._settings(kind, name)
        except REFUSALS as refusal:
            return DescribeConfigsResult(*told(refusal), kind, name)
        wanted = set(resource.configuration_keys or ())
        configs = [_told(each, request) for each in settings if not wanted or each.name in wanted]
        return DescribeConfigsResult(Error.NONE, None, kind, name, configs)

    def _settings(self, kind: int, name: str) -> list[Setting]:
        match kind:
            case Resource.TOPIC:
                check_name(name)
                return self._keys.of_topic(self._topics.get(name).configs)
            case Resource.NODE if name == "":
                return []  # what was set for all nodes while they ran: nothing can be
            case Resource.NODE:
                self._require_this_node(name)
                return self._keys.of_node()
            case Resource.NODE_LOGGERS:
                self._require_this_node(name)
                return []
            case Resource.GROUP:
                return self._keys.of_group()
            case _:
                raise Refused(Error.INVALID_REQUEST, _no_such_type(kind))

    def _require_this_node(self, name: str) -> None:
        if name != self._node:
            raise Refused(Error.INVALID_REQUEST, f"there is no node {name!r}; this is node {self._node}")

    def _list_config_resources(
        self, request: ListConfigResourcesRequest, asked: Asked
    ) -> ListConfigResourcesResponse:
        """Clients' metrics and groups have none here that anybody has set."""
        if asked.version < TYPES_NAMED_FROM:
            return ListConfigResourcesResponse()
        wanted = set(request.resource_types or Resource)
        if wanted - set(Resource):
            return ListConfigResourcesResponse(error_code=Error.UNSUPPORTED_VERSION)
        found: list[ConfigResource] = []
        if Resource.TOPIC in wanted:
            found += [ConfigResource(topic.name, Resource.TOPIC) for topic in self._topics]
        found += [
            ConfigResource(self._node, kind) for kind in (Resource.NODE, Resource.NODE_LOGGERS) if kind in wanted
        ]
        return ListConfigResourcesResponse(config_resources=found)

    # Changing

    def _alter_configs(self, request: replace.AlterConfigsRequest, _: Asked) -> replace.AlterConfigsResponse:
        twice = _repeated((each.resource_type, each.resource_name) for each in request.resources)
        responses = []
        for each in request.resources:
            of = each.resource_type, each.resource_name
            outcome = self._outcome(
                of,
                twice,
                [config.name for config in each.configs],
                partial(self._replaced, each),
                only_check=request.validate_only,
            )
            responses.append(replace.AlterConfigsResourceResponse(*outcome, *of))
        return replace.AlterConfigsResponse(responses=responses)

    def _replaced(self, resource: replace.AlterConfigsResource) -> dict[str, str]:
        """All that is to be chosen for a topic from now on."""
        return self._keys.taken({config.name: _given(config.name, config.value) for config in resource.configs})

    def _incremental_alter_configs(
        self, request: alter.IncrementalAlterConfigsRequest, _: Asked
    ) -> alter.IncrementalAlterConfigsResponse:
        twice = _repeated((each.resource_type, each.resource_name) for each in request.resources)
        responses = []
        for each in request.resources:
            of = each.resource_type, each.resource_name
            outcome = self._outcome(
                of,
                twice,
                [config.name for config in each.configs],
                partial(self._changed, each),
                only_check=request.validate_only,
            )
            responses.append(alter.AlterConfigsResourceResponse(*outcome, *of))
        return alter.IncrementalAlterConfigsResponse(responses=responses)

    def _changed(self, resource: alter.AlterConfigsResource) -> dict[str, str]:
        """What is chosen for a topic once each of the changes is made."""
        chosen = dict(self._topics.get(resource.resource_name).configs)
        values = {each.name: each.value or "" for each in self._keys.of_topic(chosen)}
        for config in resource.configs:
            value = _value_after(config, values.get(config.name, ""))
            chosen.pop(config.name, None)
            if value is not None:
                chosen |= self._keys.taken({config.name: value})
        return chosen

    def _outcome(
        self,
        of: ByType,
        twice: set[ByType],
        named: list[str],
        configs_after: Callable[[], dict[str, str]],
        *,
        only_check: bool,
    ) -> tuple[Error, str | None]:
        """Change a resource, or only find out whether it could be; the error code and text."""
        kind, name = of
        try:
            if of in twice:
                raise Refused(Error.INVALID_REQUEST, "the request names this resource more than once")
            if len(set(named)) < len(named):
                raise Refused(Error.INVALID_REQUEST, "a configuration key is there more than once; say it once")
            if kind == Resource.TOPIC:
                self._change_topic(name, configs_after, named, only_check=only_check)
            else:
                self._change_other(kind, name, named)
        except REFUSALS as refusal:
            return told(refusal)
        return Error.NONE, None

    def _change_topic(
        self, name: str, configs_after: Callable[[], dict[str, str]], named: list[str], *, only_check: bool
    ) -> None:
        check_name(name)
        self._topics.get(name)
        configs = configs_after()
        ours = [key for key in named if key not in FIXED]
        if only_check:
            self._topics.check_configs(name, configs, ours)
        else:
            self._topics.replace_configs(name, configs, ours)

    def _change_other(self, kind: int, name: str, named: list[str]) -> None:
        if kind not in (Resource.NODE, Resource.NODE_LOGGERS, Resource.GROUP):
            raise Refused(Error.INVALID_REQUEST, _no_such_type(kind))
        if kind != Resource.GROUP and name:
            self._require_this_node(name)
        if named:
            what = "a group has no configuration of its own" if kind == Resource.GROUP else "a node cannot be changed"
            text = f"{what} while it runs: set {', '.join(named)} in the settings of the node, and start it again"
            raise Refused(Error.INVALID_REQUEST, text)


def _told(setting: Setting, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = [DescribeConfigsSynonym(*each) for each in setting.synonyms] if request.include_synonyms else []
    about = setting.about if request.include_documentation else None
    return DescribeConfigsResourceResult(
        setting.name, setting.value, setting.read_only, setting.source, False, synonyms, setting.kind, about
    )


def _value_after(config: alter.AlterableConfig, value: str) -> str | None:
    """What a key becomes whose value is in force now; None is its default."""
    key, operation = config.name, config.config_operation
    if operation == Change.DELETE:
        return None
    given = _given(key, config.value)
    if operation == Change.SET:
        return given
    if operation not in (Change.APPEND, Change.SUBTRACT):
        text = f"{key}: operation {operation} is none of 0 (set), 1 (delete), 2 (append), 3 (subtract)"
        raise Refused(Error.INVALID_REQUEST, text)
    if kind_of(key) is not Kind.LIST:
        known = key in OUR_KEYS or key in FIXED
        text = f"{key} is {'not a list' if known else 'no key that is known'}: only a list can get or lose entries"
        raise Refused(Error.INVALID_CONFIG, text)
    present, named = _entries(value), _entries(given)
    if operation == Change.APPEND:
        return ",".join(dict.fromkeys(present + named))
    return ",".join(entry for entry in present if entry not in named)


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _given(key: str, value: str | None) -> str:
    if value is None:
        raise Refused(Error.INVALID_REQUEST, f"{key} has no value; give it one, or take the key away")
    return value


def _repeated(resources: Iterable[ByType]) -> set[ByType]:
    return {resource for resource, count in Counter(resources).items() if count > 1}


def _no_such_type(kind: int) -> str:
    if kind == Resource.CLIENT_METRICS:
        return "metrics of clients are not collected here"
    return f"resource type {kind} is none of 2 (topic), 4 (broker), 8 (broker logger), 32 (group)"
