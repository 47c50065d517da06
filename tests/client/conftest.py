"""Lets the tests of the client import what they share: `from serving import serving`. And a blocking client."""

import sys
from pathlib import Path

import pytest

from rivven import blocking

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def client(tmp_path):
    from serving import served

    with served(tmp_path) as address, blocking.connect(address) as client:
        yield client
