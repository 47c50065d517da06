"""Apache Kafka as a peer: one node in KRaft mode, broker and controller in one, as its own start script runs it.

Its jars come by coordinates through `mvn`, once, into a cache outside the repository, and stay there. Where Maven or
Java 17 is missing, or the jars cannot be had, Kafka is left out and the results say why. Everything that is not said
in `_properties` is Kafka's default. That default answers before anything is synced, as our policy `none` does; with
`sync_always` it syncs each write before it answers, as our policy `every_write` does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from bench.peers import TOPIC, Peer, Unavailable, free_port
from rivven.spark import java_home

RELEASE = "4.1.1"
COORDINATES = (
    ("org.apache.kafka", "kafka_2.13", RELEASE),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),  # so that it can say why it does not start
)
HEAP = ("-Xms1G", "-Xmx1G")
"""As in Kafka's start script, and so are the flags of the collector."""
COLLECTOR = (
    *("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
    *("-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)
CLUSTER_ID = "cml2dmVuLWJlbmNoLWthZg"
FETCH_S, FORMAT_S, ASK_S = 300.0, 120.0, 60.0
LOGGING = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%p %m%n
rootLogger.level=error
rootLogger.appenderRef.out.ref=out
"""
MAVEN_FILE = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>rivven</groupId><artifactId>bench-kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


class Kafka(Peer):
    """Apache Kafka, one node."""

    speaks = "kafka"
    serves_kafka_clients = True

    def __init__(self, home: Path, *, sync_always: bool = False) -> None:
        super().__init__(home)
        self.name = "Apache Kafka"
        self.kept_as = f"Kafka, sync_always={sync_always}"
        self._sync_always = sync_always

    @classmethod
    def version(cls) -> str:
        jars()
        return f"{RELEASE} (heap {HEAP[-1].removeprefix('-Xmx')})"

    def _command(self) -> list[str]:
        self.port = free_port()
        path = self.home / "server.properties"
        path.write_text(_properties(self.home / "data", self.port, free_port(), sync_always=self._sync_always))
        if not (self.home / "data").exists():
            shutil.copytree(_formatted(), self.home / "data")
        logging = self.home / "log4j2.properties"
        logging.write_text(LOGGING)
        return _java(*HEAP, *COLLECTOR, f"-Dlog4j2.configurationFile={logging}", "kafka.Kafka", str(path))

    def _await_ready(self) -> None:
        """Ready is when every partition that it has answers, as it does for `rivvend`."""
        self._wait_until(self._is_listening)
        self._wait_until(self._is_led)

    def _is_led(self) -> bool:
        from confluent_kafka import KafkaException

        try:
            topics = self._admin().list_topics(timeout=5).topics.values()
        except KafkaException:
            return False
        return all(part.leader >= 0 for topic in topics for part in topic.partitions.values())

    def _empty(self, partitions: int) -> None:
        self.create(TOPIC, partitions)

    def create(self, topic: str, partitions: int) -> None:
        """Anew: whatever there was of that name goes. It deletes at leisure, so the name may be taken for a while."""
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        admin = self._admin()
        if topic in admin.list_topics(timeout=ASK_S).topics:
            admin.delete_topics([topic], operation_timeout=ASK_S)[topic].result(ASK_S)
        _retry(lambda: admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(ASK_S))
        deadline = time.monotonic() + ASK_S
        while not self._has(admin, topic, partitions):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not make {partitions} partitions: {self.complaints()}")
            time.sleep(0.05)

    def wake_groups(self) -> None:
        """Kafka makes the topic of its groups when the first one comes, which shall be none that is measured."""
        from confluent_kafka import Consumer

        settings = {"bootstrap.servers": f"127.0.0.1:{self.port}", "group.id": "first", "log_level": 0}
        consumer = Consumer(settings)
        try:
            consumer.subscribe([TOPIC])
            deadline = time.monotonic() + ASK_S
            while not consumer.assignment():
                consumer.poll(0.1)
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} serves no groups: {self.complaints()}")
        finally:
            consumer.close()

    def _has(self, admin: Any, topic: str, partitions: int) -> bool:
        """Whether each partition answers. The metadata tell of a leader before the leader knows."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        seen = admin.list_topics(topic, timeout=ASK_S).topics[topic].partitions.values()
        if len(seen) != partitions or any(part.leader < 0 for part in seen):
            return False
        newest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, number): newest for number in range(partitions)}
        try:
            return all(told.result(ASK_S).offset == 0 for told in admin.list_offsets(wanted).values())
        except KafkaException:
            return False

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": 0})


def _retry(act: Callable[[], object]) -> None:
    from confluent_kafka import KafkaError, KafkaException

    deadline = time.monotonic() + ASK_S
    while True:
        try:
            act()
            return
        except KafkaException as error:
            exists = error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
            if not exists or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _properties(data: Path, port: int, controller_port: int, *, sync_always: bool) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",  # as ours where groups are measured
        "log.segment.delete.delay.ms": "1000",  # what a round wrote must not fill the disk during the next ones
        **({"log.flush.interval.messages": "1"} if sync_always else {}),
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def cache_home() -> Path:
    told = os.environ.get("XDG_CACHE_HOME")
    return (Path(told) if told else Path.home() / ".cache") / "rivven-bench"


@cache
def jars() -> Path:
    """The folder with Kafka's jars, fetched if need be. `Unavailable` says why there is none."""
    try:
        import confluent_kafka  # noqa: F401  its topics are made with it
    except ImportError:
        raise Unavailable("confluent-kafka is not installed") from None
    try:
        java_home()
    except Exception as error:
        raise Unavailable(str(error)) from None
    folder = cache_home() / f"kafka-{RELEASE}"
    if not folder.exists():
        _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("there is no mvn to fetch its jars with; on Debian and Ubuntu: apt install maven")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        wanted = "".join(DEPENDENCY.format(*each) for each in COORDINATES)
        (Path(work) / "pom.xml").write_text(MAVEN_FILE.format(dependencies=wanted))
        command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        said = _run([*command, f"-DoutputDirectory={work}/jars"], FETCH_S, cwd=work)
        if said is not None:
            raise Unavailable(f"mvn could not fetch org.apache.kafka:kafka_2.13:{RELEASE}: {said}")
        try:
            (Path(work) / "jars").rename(folder)  # all of them or none
        except OSError:
            if not folder.exists():  # somebody else may have been quicker
                raise


@cache
def _formatted() -> Path:
    """An empty data directory. Kafka wants one that was formatted, which takes a Java of its own."""
    folder = cache_home() / f"kafka-{RELEASE}-empty"
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        path = Path(work) / "server.properties"
        path.write_text(_properties(Path(work) / "data", 1, 2, sync_always=False))
        said = _run(_java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(path)), FORMAT_S, cwd=work)
        if said is not None:
            raise RuntimeError(f"Kafka's storage could not be formatted: {said}")
        try:
            (Path(work) / "data").rename(folder)
        except OSError:
            if not folder.exists():
                raise
    return folder


def _java(*arguments: str) -> list[str]:
    return [str(java_home() / "bin" / "java"), "-cp", f"{jars()}/*", *arguments]


def _run(command: list[str], patience_s: float, *, cwd: str) -> str | None:
    """None if it went well, else what it said last."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=patience_s, cwd=cwd)
    except subprocess.TimeoutExpired:
        return f"no end after {patience_s:.0f} s"
    said = (ended.stdout + ended.stderr).strip().splitlines()
    errors = [line for line in said if "ERROR" in line] or said
    return None if ended.returncode == 0 else " ".join(errors)[:300]
