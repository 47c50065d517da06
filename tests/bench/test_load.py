"""The load generator, in C and in Python, against a real broker: it counts what was stored, and it notices a no."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import frames, load, peers, pure_load
from rivven.wire import requests as ask
from rivven.wire import responses as tell

SECONDS = 0.4
BRIEF = {"seconds": SECONDS, "warmup_s": 0.0}
GENERATORS = [
    pytest.param(None, marks=pytest.mark.skipif(not load.is_native(), reason="no C compiler"), id="native"),
    pytest.param(load.PURE, id="pure"),
]
scripts = st.builds(load.Script, st.lists(st.binary(), min_size=1).map(tuple), st.binary(), st.integers(0, 5))
plans = st.builds(
    load.Plan,
    st.sampled_from(load.Framing),
    st.lists(scripts, min_size=1).map(tuple),
    replies_per_frame=st.integers(1, 10_000),
    expect_at=st.integers(0, 100),
    expect=st.binary(max_size=16),
)


@pytest.fixture(scope="module")
def rivvend(tmp_path_factory):
    with peers.running(peers.Rivvend, under=tmp_path_factory.mktemp("peers")) as ((peer,), _):
        yield peer


@given(plans)
def test_a_plan_is_read_as_it_was_written(plan):
    assert pure_load.read_plan(plan.packed()) == plan


def end_of(peer, partition):
    return peer.ask(ask.GetOffsetBounds(frames.TOPIC, partition), tell.OffsetBounds).latest


@pytest.mark.parametrize("generator", GENERATORS)
def test_every_record_that_was_counted_is_stored(rivvend, generator):
    rivvend.reset(3)
    plan = frames.single("native", 100, connections=2, partitions=3)
    seen = load.start(rivvend, plan, load.Shape(connections=2, **BRIEF), generator=generator).figures()
    assert sum(end_of(rivvend, partition) for partition in range(3)) >= round(seen.records_per_s * SECONDS) > 0
    assert 0 < seen.p50_us <= seen.p99_us <= seen.p999_us
    assert seen.peer_cpu_us > 0 or seen.peer_cpu == 0


@pytest.mark.parametrize("generator", GENERATORS)
def test_batches_are_stored_whole(rivvend, generator):
    rivvend.reset(2)
    plan = frames.bulk("native", 100, 50, connections=2)
    shape = load.Shape(connections=2, depth=5, **BRIEF)
    seen = load.start(rivvend, plan, shape, generator=generator).figures()
    ends = [end_of(rivvend, partition) for partition in range(2)]
    assert sum(ends) >= round(seen.records_per_s * SECONDS) > 0
    assert {end % 50 for end in ends} == {0}


@pytest.mark.parametrize("generator", GENERATORS)
def test_a_reply_that_says_no_spoils_the_run(rivvend, generator):
    rivvend.reset(1)
    plan = frames.bulk("native", 100, 50, connections=2)  # the second one's partition is not there
    with pytest.raises(load.LoadFailed, match="errors, the first"):
        load.start(rivvend, plan, load.Shape(connections=2, **BRIEF), generator=generator).figures()


def test_a_peer_leaves_nothing_behind(tmp_path):
    with peers.running(peers.Rivvend, under=tmp_path) as ((peer,), missing):
        pid, home = peer.pid, peer.home
        assert home.exists()
    assert missing == []
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{pid}").exists()


def test_a_program_that_is_not_there_is_named_with_the_remedy():
    assert shutil.which("no-such-server") is None
    with pytest.raises(peers.Unavailable, match="no-such-server; `make bench` installs"):
        peers.found("no-such-server")
