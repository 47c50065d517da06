"""What all tests share: how hard hypothesis tries (`make soak` chooses the profile `soak`), and a second chance.

A test with real processes can fail because one of them got no turn on a busy machine. Such a test is run again once,
and the summary names it as `RERUN`: a thing to look into. An assertion that proved false is never asked twice, nor
is a property: a record that was lost once was lost.
"""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

WITH_PROCESSES = ("bench", "connect", "e2e", "spark")
TESTS = Path(__file__).parent

# A shell that runs the tests in the background has them ignore interrupts, and their children would do the same
signal.signal(signal.SIGINT, signal.default_int_handler)

# Each JVM that is started works for seconds, in which the better compiler and collector only cost
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# No deadline: on a busy machine it measures the neighbours. A failure prints how to see it again.
settings.register_profile("test", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", parent=settings.get_profile("test"), max_examples=5_000)
settings.load_profile("test")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    again = pytest.mark.flaky(reruns=1, rerun_except="AssertionError")
    for item in items:
        where = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if where in WITH_PROCESSES and not is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(again)
