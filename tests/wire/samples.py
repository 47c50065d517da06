"""The messages whose bytes stand in tests/vectors/native, by the name of their vector.

A name is the class of the message, with a word behind a slash where there are several.
"""

from __future__ import annotations

from pathlib import Path

from rivven.wire import Request, Response
from rivven.wire import requests as q
from rivven.wire import responses as r

VECTORS = Path(__file__).parent.parent / "vectors" / "native"

REQUESTS: dict[str, Request] = {
    "Authenticate": q.Authenticate("u", "pw", True),
    "SaslAuthenticate": q.SaslAuthenticate(b"PLAIN", b"\0u\0pw"),
    "ScramClientFirst": q.ScramClientFirst(b"n,,n=u,r=abc"),
    "ScramClientFinal": q.ScramClientFinal(b"c=biws,r=abcd,p=AA=="),
    "Publish": q.Publish("t", 3, b"k", b"hello", None),
    "Publish/empty": q.Publish("t", None, None, b"", 300),
    "Consume": q.Consume("t", 200, 300, 500, 1, 5000),
    "CreateTopic": q.CreateTopic("orders", 3),
    "ListTopics": q.ListTopics(),
    "DeleteTopic": q.DeleteTopic("t"),
    "CommitOffset": q.CommitOffset("g", "t", 0, 128),
    "GetOffset": q.GetOffset("g", "t", 0),
    "GetMetadata": q.GetMetadata("t"),
    "GetClusterMetadata": q.GetClusterMetadata(("a", "b")),
    "Ping": q.Ping(),
    "GetOffsetBounds": q.GetOffsetBounds("t", 1),
    "ListGroups": q.ListGroups(),
    "DescribeGroup": q.DescribeGroup("g"),
    "DeleteGroup": q.DeleteGroup("g"),
    "GetOffsetForTimestamp": q.GetOffsetForTimestamp("t", 0, 1_700_000_000_000),
    "GetOffsetForTimestamp/before": q.GetOffsetForTimestamp("t", 0, -1),
    "InitProducerId": q.InitProducerId(7),
    "InitProducerId/new": q.InitProducerId(None),
    "IdempotentPublish": q.IdempotentPublish("t", 0, None, b"v", 7, 300, 64, None),
    "BeginTransaction": q.BeginTransaction("x", 7, 0, 60_000),
    "AddPartitionsToTxn": q.AddPartitionsToTxn("x", 7, 0, (q.TxnPartition("t", 0), q.TxnPartition("u", 1))),
    "TransactionalPublish": q.TransactionalPublish("x", "t", 0, None, b"v", 7, 0, 1, None),
    "AddOffsetsToTxn": q.AddOffsetsToTxn("x", 7, 0, "g", (q.TxnOffset("t", 0, -1), q.TxnOffset("t", 1, 42))),
    "CommitTransaction": q.CommitTransaction("x", 7, 0),
    "AbortTransaction": q.AbortTransaction("x", 7, 0),
    "DescribeQuotas": q.DescribeQuotas((q.QuotaEntity("user", "al"), q.QuotaEntity("user", None))),
    "AlterQuotas": q.AlterQuotas((q.QuotaAlteration("user", "al", "request_rate", 1000),)),
    "AlterTopicConfig": q.AlterTopicConfig(
        "t", (q.TopicConfigEntry("retention.ms", "1"), q.TopicConfigEntry("a", None))
    ),
    "CreatePartitions": q.CreatePartitions("t", 6, (("n1", "n2"),)),
    "DeleteRecords": q.DeleteRecords("t", (q.PartitionOffset(0, 100), q.PartitionOffset(1, 200))),
    "DescribeTopicConfigs": q.DescribeTopicConfigs(("t",)),
    "Handshake": q.Handshake(2, "rivven-client"),
    "JoinGroup": q.JoinGroup("g", "", 10_000, 30_000, "consumer", ("t",)),
    "SyncGroup": q.SyncGroup("g", 1, "m", (q.MemberAssignment("m", (q.TopicAssignment("t", (0, 1)),)),)),
    "Heartbeat": q.Heartbeat("g", 1, "m"),
    "LeaveGroup": q.LeaveGroup("g", "m"),
    "PublishBatch": q.PublishBatch("t", 0, (q.BatchRecord(None, b"a"), q.BatchRecord(b"k", b"bc")), None),
    "IdempotentPublishBatch": q.IdempotentPublishBatch("t", 0, (q.BatchRecord(None, b"a"),), 7, 0, 0, None),
}

RESPONSES: dict[str, Response] = {
    "Authenticated": r.Authenticated("ab", 3600),
    "ScramServerFirst": r.ScramServerFirst(b"r=x,s=y,i=4096"),
    "ScramServerFinal": r.ScramServerFinal(b"v=AA==", "ab", 3600),
    "Published": r.Published(300, 2),
    "Messages": r.Messages(
        (r.MessageData(1, 2, b"k", b"v", 1_700_000_000_000, (r.MessageHeader("h", b"\x01\x02"),)),)
    ),
    "TopicCreated": r.TopicCreated("t", 3),
    "Topics": r.Topics(("a", "b")),
    "TopicDeleted": r.TopicDeleted(),
    "OffsetCommitted": r.OffsetCommitted(),
    "CommittedOffset": r.CommittedOffset(5),
    "Metadata": r.Metadata("t", 3),
    "ClusterMetadata": r.ClusterMetadata(
        "n1",
        (r.BrokerInfo("n1", "h", 9092, None),),
        (r.TopicMetadata("t", False, (r.PartitionMetadata(0, "n1", ("n1",), ("n1",), False),)),),
    ),
    "Pong": r.Pong(),
    "OffsetBounds": r.OffsetBounds(0, 300),
    "Groups": r.Groups(("g",)),
    "GroupDescription": r.GroupDescription("g", {"t": {0: 5}}),
    "GroupDeleted": r.GroupDeleted(),
    "OffsetForTimestamp": r.OffsetForTimestamp(9),
    "Error": r.Error("bad"),
    "Ok": r.Ok(),
    "ProducerIdInitialized": r.ProducerIdInitialized(7, 1),
    "IdempotentPublished": r.IdempotentPublished(5, 0, True),
    "TransactionStarted": r.TransactionStarted("x"),
    "PartitionsAddedToTxn": r.PartitionsAddedToTxn("x", 2),
    "TransactionalPublished": r.TransactionalPublished(5, 0, -1),
    "OffsetsAddedToTxn": r.OffsetsAddedToTxn("x"),
    "TransactionCommitted": r.TransactionCommitted("x"),
    "TransactionAborted": r.TransactionAborted("x"),
    "QuotasDescribed": r.QuotasDescribed((r.QuotaEntry("user", None, {"request_rate": 1000}),)),
    "QuotasAltered": r.QuotasAltered(1),
    "Throttled": r.Throttled(500, "request_rate", "anonymous"),
    "TopicConfigAltered": r.TopicConfigAltered("t", 2),
    "PartitionsCreated": r.PartitionsCreated("t", 6),
    "RecordsDeleted": r.RecordsDeleted("t", (r.DeleteRecordsResult(0, 100, None), r.DeleteRecordsResult(1, 0, "e"))),
    "TopicConfigsDescribed": r.TopicConfigsDescribed(
        (r.TopicConfigDescription("t", {"retention.ms": r.TopicConfigValue("1", False, False, False)}),)
    ),
    "HandshakeResult": r.HandshakeResult(2, True, "OK"),
    "JoinGroupResult": r.JoinGroupResult(1, "consumer", "m", "m", (r.GroupMember("m", ("t",)),)),
    "SyncGroupResult": r.SyncGroupResult((q.TopicAssignment("t", (0, 1)),)),
    "HeartbeatResult": r.HeartbeatResult(27),
    "LeaveGroupResult": r.LeaveGroupResult(),
    "PublishedBatch": r.PublishedBatch(10, 0, 2),
    "IdempotentPublishedBatch": r.IdempotentPublishedBatch(10, 0, 1, False),
}

OUR_REQUESTS: dict[str, Request] = {
    "ProduceBatches": q.ProduceBatches(
        -1,
        1500,
        (q.TopicBatches("t", (q.PartitionBatches(0, b"\xaa\xbb"), q.PartitionBatches(300, b""))),),
    ),
    "ProduceBatches/transactional": q.ProduceBatches(
        -1, 1500, (q.TopicBatches("t", (q.PartitionBatches(0, b"\xaa\xbb"),)),), "x"
    ),
    "FetchBatches": q.FetchBatches(
        500, 1, 1_048_576, 1, (q.TopicFetch("t", (q.PartitionFetch(0, 300, 65_536, -1),)),)
    ),
    "PublishRecords": q.PublishRecords(
        "t",
        0,
        (q.NewRecord(b"k", None, (q.Header("h", b"\x01\x02"), q.Header("n", None)), 1_700_000_000_000),),
        None,
    ),
    "GetMetrics": q.GetMetrics("rivven_"),
    "RegisterOwner": q.RegisterOwner("query", True),
    "BeginOwnedTransaction": q.BeginOwnedTransaction("x", 7, 0, 60_000, "query", 1, 300),
    "Decide": q.Decide("query", 1, 300, (q.TxnProducer(7, 0), q.TxnProducer(8, 2))),
    "ForgetOwner": q.ForgetOwner("query", 1),
    "FindBatches": q.FindBatches(
        0, 0, 50_331_648, 0, (q.TopicFetch("t", (q.PartitionFetch(0, 300, 4_194_304, -1),)),)
    ),
    "Handshake/capabilities": q.Handshake(2, "rivven-client", 31),
}

OUR_RESPONSES: dict[str, Response] = {
    "ProducedBatches": r.ProducedBatches(
        (
            r.TopicProduced(
                "t",
                (
                    r.PartitionProduced(0, 0, None, 300, -1, 0),
                    r.PartitionProduced(1, 13, "full", -1, -1, -1),
                ),
            ),
        )
    ),
    "FetchedBatches": r.FetchedBatches(
        (
            r.TopicFetched(
                "t",
                (r.PartitionFetched(0, 0, None, 300, 300, 0, (r.AbortedTransaction(7, 290),), b"\xaa\xbb"),),
            ),
        )
    ),
    "Metrics": r.Metrics("up 1\n"),
    "OwnerRegistered": r.OwnerRegistered(1, 299),
    "OwnerRegistered/first": r.OwnerRegistered(0, None),
    "Decided": r.Decided(300, True, (q.TxnProducer(7, 0),), False),
    "Decided/long ago": r.Decided(3, False, (), True),
    "FoundBatches": r.FoundBatches(
        (
            r.TopicFound(
                "t",
                (
                    r.PartitionFound(
                        *(0, 0, None, 300, 300, 0, (r.AbortedTransaction(7, 290),), b""),
                        (r.Place("m", "/d/0.l", 66_305, 1_234_567, 300, 262_144, True),),
                    ),
                    r.PartitionFound(1, 0, None, 1, 1, 0, (), b"\xaa\xbb"),
                ),
            ),
        )
    ),
    "HandshakeResult/capabilities": r.HandshakeResult(2, True, "OK", 31),
}

PROTOBUF_REQUESTS: dict[str, Request] = {
    "Ping": q.Ping(),
    "Handshake": q.Handshake(2, "py"),
    "Publish": q.Publish("t", 0, b"k", b"hello"),
    "Consume": q.Consume("t", 0, 300, 500, None, 5000),
    "ProduceBatches": OUR_REQUESTS["ProduceBatches/transactional"],
    "Decide": OUR_REQUESTS["Decide"],
    "ForgetOwner": OUR_REQUESTS["ForgetOwner"],
}

PROTOBUF_RESPONSES: dict[str, Response] = {
    "Pong": r.Pong(),
    "Error": r.Error("bad"),
    "CommittedOffset": r.CommittedOffset(None),
    "HandshakeResult": r.HandshakeResult(2, True, "OK"),
    "Decided": OUR_RESPONSES["Decided"],
}

LONG = "n" * 257
TOO_LONG: list[tuple[Request, str]] = [
    (q.Authenticate(LONG, "", True), "username exceeds max length (257 > 256)"),
    (q.Authenticate("", "p" * 65_537, True), "password exceeds max length (65537 > 65536)"),
    (q.SaslAuthenticate(b"m" * 257, b""), "mechanism exceeds max length (257 > 256)"),
    (q.SaslAuthenticate(b"", b"a" * 65_537), "auth_bytes exceeds max length (65537 > 65536)"),
    (q.ScramClientFirst(b"a" * 65_537), "message exceeds max length (65537 > 65536)"),
    (q.Publish(LONG, None, None, b""), "topic exceeds max length (257 > 256)"),
    (q.Publish("ü" * 129, None, None, b""), "topic exceeds max length (258 > 256)"),
    (q.CreateTopic(LONG), "topic exceeds max length (257 > 256)"),
    (q.CommitOffset(LONG, "t", 0, 0), "consumer_group exceeds max length (257 > 256)"),
    (q.CommitTransaction(LONG, 0, 0), "txn_id exceeds max length (257 > 256)"),
    (q.Handshake(2, LONG), "client_id exceeds max length (257 > 256)"),
    (q.Heartbeat("g", 0, LONG), "member_id exceeds max length (257 > 256)"),
    (q.JoinGroup(LONG, "", 0, 0, "", ()), "group_id exceeds max length (257 > 256)"),
    (q.JoinGroup("", "", 0, 0, LONG, ()), "protocol_type exceeds max length (257 > 256)"),
    (q.JoinGroup("", "", 0, 0, "", (LONG,)), "subscriptions exceeds max length (257 > 256)"),
    (q.GetClusterMetadata(("t",) * 10_001), "topics list exceeds max length (10001 > 10000)"),
    (
        q.AddPartitionsToTxn("x", 0, 0, (q.TxnPartition("t", 0),) * 10_001),
        "partitions list exceeds max length (10001 > 10000)",
    ),
    (
        q.AddOffsetsToTxn("x", 0, 0, "g", (q.TxnOffset("t", 0, 0),) * 10_001),
        "offsets list exceeds max length (10001 > 10000)",
    ),
    (
        q.DescribeQuotas((q.QuotaEntity("user"),) * 10_001),
        "entities list exceeds max length (10001 > 10000)",
    ),
    (
        q.AlterQuotas((q.QuotaAlteration("user", None, "k"),) * 10_001),
        "alterations list exceeds max length (10001 > 10000)",
    ),
    (
        q.AlterTopicConfig("t", (q.TopicConfigEntry("k"),) * 10_001),
        "configs list exceeds max length (10001 > 10000)",
    ),
    (
        q.DeleteRecords("t", (q.PartitionOffset(0, 0),) * 10_001),
        "partition_offsets list exceeds max length (10001 > 10000)",
    ),
    (
        q.PublishBatch("t", None, (q.BatchRecord(None, b""),) * 10_001),
        "records list exceeds max length (10001 > 10000)",
    ),
    (
        q.SyncGroup("g", 0, "m", (q.MemberAssignment("m", ()),) * 10_001),
        "assignments list exceeds max length (10001 > 10000)",
    ),
    (
        q.SyncGroup("g", 0, "m", (q.MemberAssignment("m", (q.TopicAssignment("t", tuple(range(101))),)),) * 2000),
        "partitions list exceeds max length (200081 > 200000)",
    ),
]
"""What is above a bound, and how the refusal puts it."""


def load(file: str) -> dict[str, bytes]:
    """The vectors of one file: `= name`, then lines of hex, each with a note behind a bar."""
    vectors: dict[str, bytes] = {}
    name = ""
    for line in (VECTORS / file).read_text().splitlines():
        if line.startswith("= "):
            name = line.removeprefix("= ")
            assert name not in vectors, f"{name} stands twice in {file}"
            vectors[name] = b""
        elif line and not line.startswith("#"):
            vectors[name] += bytes.fromhex(line.split("|")[0])
    return vectors
