"""The one table of what Kafka clients may ask: key, name, versions, and whether this broker serves it.

Whatever is said to a client about versions comes from here. An api that is not served yet has its codecs all the
same, and is neither advertised nor taken; to serve it is to turn its last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

NEVER = 2**15
"""The first flexible version of what has none."""


class Stage(Enum):
    """What an api is for: these come to be served together."""

    DATA = "records, groups and topics: what every client needs"
    TRANSACTIONS = "exactly once over several partitions"
    OPERATION = "what tools and consoles ask"
    SECURITY = "who are you, and may you"
    CONSUMER_GROUPS = "groups that the broker assigns"
    SHARE_GROUPS = "groups whose members share a partition"


class Api(NamedTuple):
    """One kind of request: its versions from `oldest` to `newest`, of which `flexible` is the first with tags."""

    key: int
    name: str
    oldest: int
    newest: int
    flexible: int
    stage: Stage
    served: bool = True
    advertised_from: int | None = None
    note: str = ""

    @property
    def module(self) -> str:
        """Where its messages are, in `made`."""
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in self.name)[1:]

    @property
    def advertised(self) -> tuple[int, int]:
        """The versions that a client is told of."""
        return (self.oldest if self.advertised_from is None else self.advertised_from), self.newest

    def knows(self, version: int) -> bool:
        return self.oldest <= version <= self.newest


_D, _T, _O, _S, _G, _H = Stage
LATER = False

APIS: Mapping[int, Api] = MappingProxyType(
    {
        api.key: api
        for api in (
            Api(
                0,
                "Produce",
                3,
                13,
                9,
                _D,
                advertised_from=0,
                note="0 to 2 are refused; a librdkafka before 2.8 that is not told of them stops compressing",
            ),
            Api(1, "Fetch", 4, 18, 12, _D, note="topics by id from 13 on"),
            Api(2, "ListOffsets", 1, 11, 6, _D),
            Api(3, "Metadata", 0, 13, 9, _D),
            Api(8, "OffsetCommit", 2, 10, 8, _D, note="topics by id in 10"),
            Api(9, "OffsetFetch", 1, 10, 6, _D, note="several groups from 8 on, topics by id in 10"),
            Api(10, "FindCoordinator", 0, 6, 3, _D, note="several keys from 4 on"),
            Api(11, "JoinGroup", 0, 9, 6, _D),
            Api(12, "Heartbeat", 0, 4, 4, _D),
            Api(13, "LeaveGroup", 0, 5, 4, _D, note="several members from 3 on"),
            Api(14, "SyncGroup", 0, 5, 4, _D),
            Api(15, "DescribeGroups", 0, 6, 5, _O),
            Api(16, "ListGroups", 0, 5, 3, _O),
            Api(17, "SaslHandshake", 0, 1, NEVER, _S, LATER, note="after 0 the tokens follow without a header"),
            Api(18, "ApiVersions", 0, 4, 3, _D, note="answered with a header without tags, in every version"),
            Api(19, "CreateTopics", 2, 7, 5, _D),
            Api(20, "DeleteTopics", 1, 6, 4, _D, note="topics by id in 6"),
            Api(21, "DeleteRecords", 0, 2, 2, _O),
            Api(22, "InitProducerId", 0, 5, 2, _D, note="6 is not stable yet in Kafka"),
            Api(23, "OffsetForLeaderEpoch", 2, 4, 4, _D),
            Api(24, "AddPartitionsToTxn", 0, 5, 3, _T, note="clients send at most 3"),
            Api(25, "AddOffsetsToTxn", 0, 4, 3, _T),
            Api(26, "EndTxn", 0, 5, 3, _T, note="5 raises the epoch with every transaction"),
            Api(27, "WriteTxnMarkers", 1, 2, 1, _T),
            Api(28, "TxnOffsetCommit", 0, 5, 3, _T),
            Api(29, "DescribeAcls", 1, 3, 2, _S, LATER),
            Api(30, "CreateAcls", 1, 3, 2, _S, LATER),
            Api(31, "DeleteAcls", 1, 3, 2, _S, LATER),
            Api(32, "DescribeConfigs", 1, 4, 4, _D),
            Api(33, "AlterConfigs", 0, 2, 2, _O),
            Api(34, "AlterReplicaLogDirs", 1, 2, 2, _O, LATER),
            Api(35, "DescribeLogDirs", 1, 5, 2, _O),
            Api(36, "SaslAuthenticate", 0, 2, 2, _S, LATER),
            Api(37, "CreatePartitions", 0, 3, 2, _D),
            Api(42, "DeleteGroups", 0, 2, 2, _O),
            Api(43, "ElectLeaders", 0, 2, 2, _O),
            Api(44, "IncrementalAlterConfigs", 0, 1, 1, _O),
            Api(45, "AlterPartitionReassignments", 0, 1, 0, _O, LATER),
            Api(46, "ListPartitionReassignments", 0, 0, 0, _O),
            Api(47, "OffsetDelete", 0, 0, NEVER, _O),
            Api(48, "DescribeClientQuotas", 0, 1, 1, _O),
            Api(49, "AlterClientQuotas", 0, 1, 1, _O),
            Api(50, "DescribeUserScramCredentials", 0, 0, 0, _S, LATER),
            Api(51, "AlterUserScramCredentials", 0, 0, 0, _S, LATER),
            Api(60, "DescribeCluster", 0, 2, 0, _D),
            Api(61, "DescribeProducers", 0, 0, 0, _T),
            Api(65, "DescribeTransactions", 0, 0, 0, _T),
            Api(66, "ListTransactions", 0, 2, 0, _T),
            Api(68, "ConsumerGroupHeartbeat", 0, 1, 0, _G),
            Api(69, "ConsumerGroupDescribe", 0, 1, 0, _G),
            Api(74, "ListConfigResources", 0, 1, 0, _O),
            Api(75, "DescribeTopicPartitions", 0, 0, 0, _O),
            Api(76, "ShareGroupHeartbeat", 1, 1, 0, _H, LATER),
            Api(77, "ShareGroupDescribe", 1, 1, 0, _H, LATER),
            Api(78, "ShareFetch", 1, 2, 0, _H, LATER),
            Api(79, "ShareAcknowledge", 1, 2, 0, _H, LATER),
            Api(90, "DescribeShareGroupOffsets", 0, 1, 0, _H, LATER),
            Api(91, "AlterShareGroupOffsets", 0, 0, 0, _H, LATER),
            Api(92, "DeleteShareGroupOffsets", 0, 0, 0, _H, LATER),
        )
    }
)
"""Every api with codecs, by its key."""

SERVED: Mapping[int, Api] = MappingProxyType({key: api for key, api in APIS.items() if api.served})
"""What this broker takes and advertises."""

API_VERSIONS = 18
