"""The page and the pictures: whatever was measured stands there, losses and failures too."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from bench.spread import alone, left_out, versus

from bench import machine, page, plots

MACHINE = {"commit": "abc", "cpu": "a processor", "quick": False}
WIN = {"part": "sizes", **versus("produce 100 B", "records/s", [900, 1000, 1100], "Apache Kafka", [400, 500, 600])}
LOSS = {"part": "sizes", **versus("produce 1 KB", "records/s", [90, 100], "Apache Kafka", [300, 400], target=0.9)}
EVEN = {"part": "latency", **versus("p99", "ms", [4, 5, 6], "Apache Kafka", [5, 6, 7], less_is_better=True)}
OURS = {"part": "start", **alone("start", "s", [0.5], target=1.0, met=True)}
SELF = {"part": "start", **versus("many", "s", [2.0], "rivvend, 1 partition", [1.0], less_is_better=True)}
MISSING = {"part": "sizes", **left_out("produce", ["Apache Kafka: there is no mvn"])[0]}
BROKEN = {"part": "fanout", "bench": "fanout", "failed": "RuntimeError: it | did not start"}
ALL = [WIN, LOSS, EVEN, OURS, SELF, MISSING, BROKEN]
QUESTIONS = {"sizes": "How many?", "latency": "How long?", "start": "How soon?", "fanout": "To how many?"}


def rows_of(text):
    return [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| what")]


def test_everything_that_was_measured_stands_on_the_page():
    text = page.markdown(MACHINE, ALL, questions=QUESTIONS)
    for result in ALL:
        assert any(line.startswith(f"| {result['bench']} |") for line in rows_of(text)), result
    assert all(question in text for question in QUESTIONS.values())
    assert "there is no mvn" in text


def test_wins_losses_and_draws_are_counted_without_those_against_ourselves():
    assert "In 3 comparisons with its rivals rivvend is ahead in 1, behind in 1 and even in 1." in page.summary(ALL)


def test_what_was_missed_and_what_failed_is_told_first():
    told = page.summary(ALL)
    assert "Of 2 targets 1 were met." in told
    assert "- sizes: produce 1 KB, beside Apache Kafka" in told
    assert "- fanout: RuntimeError" in told


def test_a_row_has_the_spread_of_both_sides():
    row = page.row(WIN)
    assert "1,000 records/s (900 – 1,100) | Apache Kafka | 500 records/s (400 – 600) | 2.00" in row
    assert row.endswith("ahead |")
    assert "**missed**; behind" in page.row(LOSS)


def test_every_row_has_as_many_cells_as_the_head():
    for result in ALL:
        assert page.row(result).count("|") == page.HEAD.count("|"), result


def test_a_part_of_another_run_says_so_and_on_which_machine_if_it_was_another():
    own = [each | {"commit": "abc", "cpu": "a processor"} for each in (WIN, EVEN)]
    text = page.markdown(MACHINE, own, questions=QUESTIONS)
    assert "run of its own" not in text
    older = own[0] | {"commit": "old"}
    assert "run of its own, of commit old.\n" in page.markdown(MACHINE, [older], questions=QUESTIONS)
    elsewhere = page.markdown(MACHINE, [older | {"cpu": "a slower one"}], questions=QUESTIONS)
    assert "run of its own, of commit old, on another machine: a slower one.\n" in elsewhere


def test_only_a_quick_run_is_called_one():
    assert "quick run" not in page.markdown(MACHINE, ALL, questions=QUESTIONS)
    assert "quick run" in page.markdown({**MACHINE, "quick": True}, ALL, questions=QUESTIONS)


def charted(x, rival, ours="rivvend"):
    return versus("x", "records/s", [1, 2, 3], rival, [4, 5, 6], chart="growth-produce", x=x) | {"ours": ours}


def test_a_line_has_each_place_once_and_ours_comes_first():
    results = [charted(x, rival) for x in ("1", "1,000") for rival in ("Apache Kafka", "Redis")]
    lines = plots.lines_of([*results, WIN], "growth-produce")
    assert list(lines) == ["rivvend", "Apache Kafka", "Redis"]
    assert lines["rivvend"] == [plots.Point("1", 2, 1, 3), plots.Point("1,000", 2, 1, 3)]
    assert lines["Redis"] == [plots.Point("1", 5, 4, 6), plots.Point("1,000", 5, 4, 6)]


def waited(rate, durability):
    return {
        **EVEN,
        "chart": "latency",
        "x": rate,
        "durability": durability,
        "ours": "rivvend, our client",
        "percentiles": {"50": 1.0, "99": 4.0},
        "against_percentiles": {"50": 2.0, "99": 8.0},
    }


def test_percentiles_are_those_of_one_rate_and_one_promise():
    results = [waited("1,000", "no sync"), waited("10,000", "no sync"), waited("1,000", "sync before answer")]
    lines = plots.percentiles_of(results, "1,000", "no sync")
    assert lines == {"rivvend, our client": [("50", 1.0), ("99", 4.0)], "Apache Kafka": [("50", 2.0), ("99", 8.0)]}
    assert plots.percentiles_of(results, "5", "no sync") == {}


def test_pictures_are_svg_and_the_same_for_the_same_results(tmp_path):
    pytest.importorskip("matplotlib")
    results = [charted("1", "Redis"), charted("10", "Redis"), waited("1,000", "no sync")]
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    one, two = (plots.draw(results, folder) for folder in folders)
    assert [name for name, _ in one] == ["growth-produce.svg", "latency-unsynced.svg"]
    assert one == two
    for name, _ in one:
        texts = {(folder / name).read_bytes() for folder in folders}
        assert len(texts) == 1
        assert ElementTree.fromstring(texts.pop()).tag.endswith("svg")


def test_the_machine_is_told_from_what_the_kernel_says():
    assert machine.cpu_model("processor : 0\nmodel name\t: Some Processor 9000\n") == "Some Processor 9000"
    mounts = "a / ext4 rw 0 0\nb /home xfs rw 0 0\nc /home/my\\040disk btrfs rw 0 0\n"
    assert machine.filesystem(Path("/var"), mounts) == "ext4"
    assert machine.filesystem(Path("/home/you"), mounts) == "xfs"
    assert machine.filesystem(Path("/home/my disk/x"), mounts) == "btrfs"
