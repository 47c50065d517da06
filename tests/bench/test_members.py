"""The group that is measured: its members share every partition, and share them anew when one leaves."""

import pytest

from bench import members, peers


@pytest.fixture(scope="module")
def rivvend(tmp_path_factory):
    with peers.running(at_once, under=tmp_path_factory.mktemp("peers")) as ((peer,), _):
        peer.reset(7)
        yield peer


def at_once(home):
    """The first member does not wait for company."""
    return peers.Rivvend(home, "--group-initial-rebalance-delay-ms", "0")


def test_all_members_come_to_one_generation_twice(rivvend):
    seen = members.measure(rivvend.port, "several", peers.TOPIC, partitions=7, members=3)
    assert seen.generations >= 2
    assert seen.first_s > 0
    assert seen.second_s > 0


def test_partitions_that_nobody_got_are_noticed():
    with pytest.raises(AssertionError, match="7 partitions were dealt out, of 8"):
        members.check_shares([[0, 1, 2], [3, 4, 5, 6]], 8)


def test_a_partition_that_two_got_is_noticed():
    with pytest.raises(AssertionError, match="5 partitions were dealt out, of 4"):
        members.check_shares([[0, 1, 2], [2, 3]], 4)
