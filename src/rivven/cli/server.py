"""The broker that a command talks to: how it is named and reached, and what its refusals mean to a user."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from rivven.errors import RivvenError

from . import show
from .opening import usage
from .text import parse_when

if TYPE_CHECKING:
    from rivven.client import blocking

# The client is imported where it is used: `--help` should not wait for it.

DEFAULT = "127.0.0.1:9092"
CONNECT_TIMEOUT_MS = 5_000

Server = Annotated[
    str,
    typer.Option(
        "--server",
        "-s",
        metavar="HOST:PORT",
        envvar="RIVVEN_SERVER",
        help="The broker to ask; several, with commas, are tried in turn.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@contextmanager
def connected(server: str) -> Iterator[blocking.RivvenClient]:
    """A client of the broker, for as long as the command runs."""
    from rivven.client import Options, blocking

    # A socket that breaks is an error to tell, not the quiet end that it is for a pipe; typer sees to the pipe.
    if signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    options = Options(client_id="rivven-cli", connect_timeout_ms=CONNECT_TIMEOUT_MS)
    with blocking.connect(server, options=options) as client:
        yield client


def partitions_of(client: blocking.RivvenClient, topic: str, partition: int | None = None) -> list[int]:
    """The partitions of a topic, or the one that was asked for; an error if there is no such thing."""
    count = client.get_metadata(topic)[1]
    if partition is None:
        return list(range(count))
    if partition >= count:
        raise _no_partition(topic, partition, count)
    return [partition]


def _no_partition(topic: str, partition: int, count: int) -> RivvenError:
    from rivven.client import ServerException

    last = f"they are numbered 0 to {count - 1}" if count > 1 else "it has only number 0"
    return ServerException(reason=f"INVALID_PARTITION: topic '{topic}' has no partition {partition}; {last}")


def done(text: str) -> None:
    """Say that it is done."""
    show.say(f"{show.tint('✓', show.GREEN)} {text}")


# Values that are given as text


def from_time(text: str, option: str = "--timestamp") -> int:
    try:
        return parse_when(text)
    except (ValueError, OverflowError):
        usage(f"{option} takes a time like 2025-03-01T12:00:00Z, or milliseconds since 1970, not {text!r}")


def from_pairs(texts: list[str], what: str) -> list[tuple[str, str]]:
    """`name=value`, each."""
    pairs = [text.partition("=") for text in texts]
    for (name, equals, _), text in zip(pairs, texts, strict=True):
        if not name or not equals:
            usage(f"{what} takes name=value, not {text!r}")
    return [(name, value) for name, _, value in pairs]


# What went wrong, and the next step

START = "Start a broker with `rivvend`, or name another with --server or RIVVEN_SERVER."
TOPICS = "`rivven topic list` shows the topics there are."
STEPS = (
    (
        r"(?i)partition .*\bnot (found|exist)|\b(INVALID|UNKNOWN)_PARTITION:",
        "`rivven topic info` shows the partitions.",
    ),
    (r"(?i)topic not found|topic '.*' (not found|does not exist)|there is no (topic|partition)", TOPICS),
    (r"(?i)already exists", "Choose another name, or look at it with `rivven topic info`."),
    (
        r"NON_EMPTY_GROUP:|GROUP_NOT_EMPTY:|(?i:group .* (has (?!no )\d* ?members?|is not empty))",
        "Stop its consumers first; `rivven group describe` shows them.",
    ),
    (r"^TRANSACTIONAL_ID_NOT_FOUND:", "`rivven txn list` shows the transactions there are."),
    (r"^INVALID_TXN_STATE:.*has nothing open", "`rivven txn list --state open` shows those that are open."),
    (r"^INVALID_TXN_STATE:.*its coordinator knows it", "Abort it by its id: `rivven txn abort ID`."),
    (r"^INVALID_TXN_STATE:|^INVALID_PRODUCER_EPOCH:", "`rivven txn list --hanging` shows those that hang."),
    (r"^CONCURRENT_TRANSACTIONS:", "Wait a moment; `rivven txn describe` shows when it has ended."),
    (r"(?i)group '.*' not found", "`rivven group list` shows the groups there are."),
    (r"^INVALID_CONFIG:", "`rivven topic config describe` shows the settings and their values."),
    (r"^OFFSET_OUT_OF_RANGE:", "`rivven offsets list` shows which offsets there are."),
    (r"^INVALID_TOPIC_NAME:", "Choose another name."),
    (r"^INVALID_PARTITION", "Choose another number of partitions."),
    (
        r"^MESSAGE_TOO_LARGE:|above the limit of",
        "Raise max.message.bytes with `rivven topic config set`, or send less at once.",
    ),
    (r"^UNSUPPORTED: GetMetrics", "Its HTTP port has them: curl http://127.0.0.1:8080/metrics"),
    (r"^UNSUPPORTED:", "Ask a newer broker."),
)


CODES = re.compile(r"^(?:[A-Z]+(?:_[A-Z]+)*: )+")
"""What a refusal begins with, for programs."""


COUNT = re.compile(r"^INVALID_PARTITION(?:S|_COUNT): (?=at most|must)")
"""A refusal that says in its code alone what it is about."""


def explain(error: RivvenError) -> tuple[str, str] | None:
    """(what happened, the next step) for an error of the client; None for any other."""
    from rivven.client import ConfigException, ConnectionException, ServerException, TimeoutException, TryAgain

    text = str(error)
    match error:
        case ServerException():
            step = next((step for pattern, step in STEPS if re.search(pattern, text)), "")
            if not step:
                step = "Try again in a moment." if isinstance(error, TryAgain) else "The broker's own log says more."
            return _sentence(CODES.sub("", COUNT.sub("the number of partitions: ", text))), step
        case ConnectionException() | TimeoutException():
            return _sentence(re.sub(r"\[Errno -?\d+\] ", "", text)), START
        case ConfigException():
            return _sentence(text), "Each command shows what it takes with --help."
        case _:
            return None


def is_misuse(error: RivvenError) -> bool:
    from rivven.client import ConfigException, SerializationException

    return isinstance(error, ConfigException | SerializationException)


def _sentence(text: str) -> str:
    """An error line begins small, as the others do, and ends with a stop."""
    word = text.split(" ", 1)[0]
    lowered = text[:1].lower() + text[1:] if word[1:].islower() else text
    return lowered if lowered.endswith((".", "?", "!")) else lowered + "."
