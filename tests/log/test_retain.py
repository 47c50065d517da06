"""Retention: whole segments, oldest first, never the active one, never what is not durable."""

from __future__ import annotations

from building import NOW_MS, at_every_halt, batch_of, new_world, records_of, transactional, values_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rivven.log.retain import seals_for_retention, start_after_retention

HOUR_MS = 3_600_000


def filled(seed: int = 0, count: int = 20, **configs: str):
    """One batch of about 230 bytes an hour, four to a segment; the clock stands at the last one."""
    world = new_world(seed, configs={name.replace("_", "."): value for name, value in configs.items()})
    for number in range(count):
        world.write(b"%d" % number + bytes(150), timestamp_ms=NOW_MS + number * HOUR_MS)
    world.clock.advance(ms=(count - 1) * HOUR_MS)
    return world


def bases(world) -> list[int]:
    return [segment.base_offset for segment in world.log().segments]


def test_by_time_whole_segments_go():
    world = filled(retention_ms=str(10 * HOUR_MS))
    borders = bases(world)
    (start,) = world.store.retain().values()
    newest = [border for border in borders[1:] if border - 1 < 19 - 10]
    assert start == newest[-1]
    assert bases(world) == borders[borders.index(start) :]
    assert records_of(world.log())[0].offset == start


def test_a_record_just_old_enough_stays():
    world = filled(retention_ms=str(19 * HOUR_MS))
    assert world.store.retain() == {}
    world.clock.advance(ms=bases(world)[1] * HOUR_MS)
    assert list(world.store.retain().values()) == [bases(world)[0]]


def test_by_bytes_the_log_shrinks_to_its_limit_and_no_further():
    world = filled(retention_ms="-1", retention_bytes="2000")
    log = world.log()
    before_bytes = log.size_bytes
    sizes = [segment.end_bytes for segment in log.segments]
    world.store.retain()
    assert 2000 <= log.size_bytes < before_bytes
    assert log.size_bytes - sizes[len(sizes) - len(log.segments)] < 2000 or log.size_bytes >= 2000
    assert log.size_bytes == sum(sizes[-len(log.segments) :])


def test_without_limits_nothing_goes():
    world = filled(retention_ms="-1", retention_bytes="-1")
    world.clock.advance(ms=10**12)
    assert world.store.retain() == {}


def test_a_log_that_is_compacted_only_is_left_alone():
    world = filled(retention_ms="1", retention_bytes="1", cleanup_policy="compact")
    world.clock.advance(ms=10**12)
    assert world.store.retain() == {}


def test_a_log_that_is_compacted_and_deleted_is_not():
    world = filled(retention_ms="1", cleanup_policy="compact,delete")
    world.clock.advance(ms=10**12)
    assert list(world.store.retain().values()) == [20]


def test_the_active_segment_stays_however_large():
    world = filled(retention_ms="-1", retention_bytes="0")
    active = bases(world)[-1]
    world.store.retain()
    assert bases(world) == [active]
    assert len(values_of(world.log())) == 20 - active


def test_an_active_segment_that_has_outlived_its_time_is_sealed_and_goes():
    world = filled(retention_ms=str(HOUR_MS))
    world.clock.advance(ms=10 * HOUR_MS)
    assert seals_for_retention(world.log(), world.clock.now_ms())
    assert list(world.store.retain().values()) == [20]
    assert values_of(world.log()) == []
    assert world.write(b"next").base_offset == 20


def test_nothing_above_the_high_watermark_goes():
    world = filled(retention_ms="0", retention_bytes="0", count=3)
    for _ in range(12):
        world.put(batch_of(bytes(150), timestamp_ms=1))
    log = world.log()
    assert len(log.segments) > 3
    now_ms = world.clock.now_ms() + 10**9
    assert start_after_retention(log, now_ms) <= log.high_watermark == 3
    assert not seals_for_retention(log, now_ms)


def test_nothing_of_an_open_transaction_goes():
    world = filled(retention_ms=str(HOUR_MS), count=6)
    world.write(b"open", **transactional(timestamp_ms=NOW_MS))
    first_open = world.log().last_stable
    for _ in range(12):
        world.write(bytes(150), timestamp_ms=NOW_MS)
    world.clock.advance(ms=100 * HOUR_MS)
    world.store.retain()
    assert 0 < world.log().start <= first_open
    assert b"open" in values_of(world.log())
    world.mark(7, commit=True)
    world.clock.advance(ms=100 * HOUR_MS)
    world.store.retain()
    assert world.log().start > first_open


def test_the_start_survives_a_restart():
    for end in ("close", "kill", "crash"):
        world = filled(retention_ms=str(10 * HOUR_MS))
        world.store.retain()
        start, values = world.log().start, values_of(world.log())
        assert start > 0
        world.reopen(end)
        assert (world.log().start, values_of(world.log())) == (start, values)


def test_a_crash_at_any_point_leaves_the_old_start_or_the_new():
    def check(world) -> None:
        assert world.log().start in (0, 8)
        assert [record.offset for record in records_of(world.log())] == list(range(world.log().start, 20))

    build = lambda seed: filled(seed, retention_ms=str(10 * HOUR_MS))  # noqa: E731
    at_every_halt(build, lambda world: world.store.retain(), check)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 50)), min_size=1, max_size=25),
    st.integers(-1, 60),
    st.integers(-1, 4000),
    st.integers(0, 70),
)
@settings(max_examples=60)
def test_retention_equals_a_model(batches, retention_ms, retention_bytes, now_ms):
    world = new_world(configs={"retention.ms": str(retention_ms), "retention.bytes": str(retention_bytes)})
    for value_bytes, at in batches:
        world.put(batch_of(bytes(value_bytes), timestamp_ms=at))
    world.store.flush()
    log = world.log()
    if seals_for_retention(log, now_ms):
        log.roll()
    rows = [(s.base_offset, s.next_offset, s.end_bytes) for s in log.segments]
    start, left_bytes = 0, sum(row[2] for row in rows)
    for base, following, size_bytes in rows[:-1]:
        newest_ms = max(at for _, at in batches[base:following])
        too_old = retention_ms >= 0 and now_ms - newest_ms > retention_ms
        too_many = retention_bytes >= 0 and left_bytes - size_bytes >= retention_bytes
        if not too_old and not too_many:
            break
        start, left_bytes = following, left_bytes - size_bytes
    world.store.retain(now_ms=now_ms)
    assert log.start == start
