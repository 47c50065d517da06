"""Every number that a command takes has a range, and beyond it the parser names the option: no broker is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from rivven.cli import bench
from rivven.cli.bounds import VALUE_BYTES_MAX
from rivven.cli.main import app, main
from rivven.connect.main import app as connect_app
from rivven.connect.main import main as connect_main
from rivven.limits import MIB

HUGE = str(10**30)
MAINS = {"rivven": main, "rivven-connect": connect_main}


def numbers(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(command, parameter) for every parameter that is a whole number."""
    for parameter in command.params:
        if parameter.type.name.startswith("int"):
            yield path, parameter
    for name, each in getattr(command, "commands", {}).items():
        yield from numbers(each, *path, name)


def every_number() -> list[Any]:
    found = [
        *numbers(typer.main.get_command(app), "rivven"),
        *numbers(typer.main.get_command(connect_app), "rivven-connect"),
    ]
    return [pytest.param(*each, id=" ".join([*each[0], each[1].opts[0]])) for each in found]


def refused(capsys: pytest.CaptureFixture[str], name: str, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        MAINS[name](arguments)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    return err


@pytest.mark.parametrize(("path", "parameter"), every_number())
def test_a_number_out_of_all_proportion_is_refused_by_its_option_and_range(
    path: tuple[str, ...], parameter: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    low, high = parameter.type.min, parameter.type.max
    assert low is not None
    assert high is not None
    given = [parameter.opts[0], HUGE]
    if parameter.param_type_name == "argument":
        given = ["x" if each.name != parameter.name else HUGE for each in arguments_of(path)]
    told = refused(capsys, path[0], *path[1:], *given).splitlines()[-1]
    name = parameter.metavar if parameter.param_type_name == "argument" else parameter.opts[0]
    assert told.startswith("Error: Invalid value for ")
    assert f"'{name}'" in told
    assert told.endswith(f": {HUGE} is not in the range {low}<=x<={high}.")


def arguments_of(path: tuple[str, ...]) -> list[Any]:
    command: Any = typer.main.get_command(app)
    for name in path[1:]:
        command = command.commands[name]
    return [each for each in command.params if each.param_type_name == "argument"]


def test_there_are_such_options() -> None:
    found = {each.id for each in every_number()}
    assert len(found) > 20
    assert {"rivven consume --offset", "rivven quota set --request-rate", "rivven offsets commit offset"} <= found


@pytest.mark.parametrize("digits", [HUGE, "9" * 5000], ids=["30 digits", "more than int() reads"])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("consume x --timestamp {}", "--timestamp"),
        ("offsets list x --timestamp -{}", "--timestamp"),
        ("log find nowhere -t x --timestamp {}", "--timestamp"),
        ("txn list --older-than {}d", "--older-than"),
        ("group reset-offsets g -t x --to {}", "--to"),
        ("group reset-offsets g -t x --to -{}", "--to"),
        ("group reset-offsets g -t x --to offset:{}", "--to"),
        ("group reset-offsets g -t x --to timestamp:{}", "--to"),
        ("group reset-offsets g -t x:{} --to 0", "--topic"),
        ("group reset-offsets g -t x:0-{} --to 0", "--topic"),
    ],
)
def test_so_is_one_inside_of_a_text(
    command: str, option: str, digits: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIVVEN_SERVER", "127.0.0.1:1")
    assert refused(capsys, "rivven", *command.format(digits).split()).startswith(f"error: {option} ")


def test_the_largest_values_of_a_benchmark_fit_into_memory() -> None:
    assert [len(bench._payloads(size)) for size in (0, 100, 2 * MIB)] == [64, 64, 32]
    assert bench.PAYLOADS_BYTES // VALUE_BYTES_MAX >= 1
