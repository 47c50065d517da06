"""From text to values."""

import pytest

from rivven.server.values import sync_policy


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("EveryWrite", "every_write"),
        ("EveryNWrites(5)", "every_n_writes(5)"),
        ("EveryNWrites(1)", "every_write"),
        ("None", "none"),
    ],
)
def test_a_sync_policy_may_be_written_in_camel_case(text, wanted):
    assert sync_policy(text) == wanted
