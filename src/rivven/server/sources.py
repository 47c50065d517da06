"""Where a setting was given: in a flag, a variable or the YAML file, each read into a list of `Given`.

Nothing is weighed here, and no value parsed: what was written is kept as text, beside its row of the table and its
place. Invariant: one source gives a setting once; a key that nobody knows is named with the nearest there is.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from rivven import __version__
from rivven.limits import MIB

from .settings import ENV, FLAGS, PATHS, SECTIONS_LATER, SETTINGS, Setting, Settings
from .values import FALSE, did_you_mean

if TYPE_CHECKING:
    from yaml import Node as YamlNode

FILE_BYTES_MAX = 1 * MIB
FILE_DEPTH_MAX = 8
NULL = "tag:yaml.org,2002:null"
NOT_SETTINGS = {"RIVVEN_CONFIG", "RIVVEN_PURE", "RIVVEN_NO_NATIVE", "RIVVEN_SERVER"}
SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_\d+_(TCP|UDP)|$)")
"""What Kubernetes puts into the environment of every pod beside a service called rivven."""


class Misused(Exception):
    """What the user gave cannot be used; `problems` are lines for them to read."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True, slots=True)
class Origin:
    source: str
    """flag, environment, file or default"""
    key: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        if self.file:
            return f"{self.file}:{self.line}: {self.key}"
        return self.key or self.source


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True)
class Given:
    setting: Setting
    negated: bool
    text: str
    origin: Origin


# The environment


def read_environment(environment: Mapping[str, str], problems: list[str], warnings: list[str]) -> list[Given]:
    """A variable that nobody knows is a warning: it may be meant for a client that shares the environment."""
    found = []
    for key in sorted(environment):
        if key in ENV:
            found.append(Given(*ENV[key], environment[key], Origin("environment", key)))
        elif key.startswith("RIVVEN_") and key not in NOT_SETTINGS and not SERVICE_LINK.search(key):
            warnings.append(f"{key} is not a setting of rivvend and is ignored{did_you_mean(key, ENV)}")
    _refuse_doubles(found, problems)
    plain = {id(given.setting) for given in found if given.origin.key != "RUST_LOG"}
    return [given for given in found if given.origin.key != "RUST_LOG" or id(given.setting) not in plain]


def _refuse_doubles(found: list[Given], problems: list[str]) -> None:
    seen: dict[int, Given] = {}
    for given in found:
        if given.origin.key == "RUST_LOG":
            continue  # set for others, mostly; our own variable is stronger
        other = seen.setdefault(id(given.setting), given)
        if other is not given:
            problems.append(f"{given.origin}: {other.origin.key} sets the same; keep one of them")


# The file


def read_file(path: str, problems: list[str]) -> list[Given]:
    import yaml  # only who has a file waits for this

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Misused([f"--config {path}: cannot be read: {why}"]) from None
    if len(text) > FILE_BYTES_MAX:
        raise Misused([f"--config {path}: is larger than {FILE_BYTES_MAX} bytes"])
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        raise Misused([f"{where}: not YAML: {getattr(error, 'problem', None) or error}"]) from None
    except RecursionError:
        raise Misused([f"{path}: is nested too deeply"]) from None
    found: list[Given] = []
    if root is not None:
        _read_node(root, "", path, found, problems)
    _refuse_doubles(found, problems)
    return found


def _read_node(
    node: YamlNode, at: str, path: str, found: list[Given], problems: list[str], *, off: bool = False
) -> None:
    """Walk a mapping; scalars are taken as the text they are written in. `off` is a feature that is yet to come and
    turned off: what it would need is passed over."""
    import yaml

    if not isinstance(node, yaml.MappingNode) or at.count(".") > FILE_DEPTH_MAX:
        where = f"{path}:{node.start_mark.line + 1}: {at or 'the file'}"
        problems.append(f"{where}: wants keys and values below it, as `server:` and `  http_port: 8080`")
        return
    seen = set()
    for key_node, value in node.value:
        name = f"{at}.{key_node.value}" if at else str(key_node.value)
        origin = Origin("file", name, path, key_node.start_mark.line + 1)
        if name in seen:
            problems.append(f"{origin}: is there twice")
        seen.add(name)
        if name in PATHS:
            if not (off and PATHS[name][0].later):
                _read_value(value, name, origin, found, problems)
        elif is_section(name):
            if value.tag != NULL:
                lacking = name in SECTIONS_LATER and _means_off(value)
                _read_node(value, name, path, found, problems, off=lacking)
        elif (feature := _feature_of(name)) is None:
            problems.append(f"{origin}: unknown key{_nearest_path(name)}")
        elif not off and not _means_off(value):
            problems.append(f"{origin}: {not_yet(feature)}{did_you_mean(name, PATHS)}")


def _feature_of(name: str) -> str | None:
    """The feature yet to come that a key belongs to, by itself or by a section above it."""
    while name:
        if name in SECTIONS_LATER:
            return SECTIONS_LATER[name]
        name = name.rpartition(".")[0]
    return None


def not_yet(feature: str) -> str:
    return f"not available yet in rivven {__version__}, since it needs {feature}"


def _read_value(value: YamlNode, name: str, origin: Origin, found: list[Given], problems: list[str]) -> None:
    import yaml

    if isinstance(value, yaml.ScalarNode):
        if value.tag != NULL:
            found.append(Given(*PATHS[name], value.value, origin))
    elif isinstance(value, yaml.SequenceNode) and PATHS[name][0].later:
        items = ",".join(str(item.value) for item in value.value)
        found.append(Given(*PATHS[name], items, origin))
    else:
        problems.append(f"{origin}: wants a single value")


def is_section(name: str) -> bool:
    return any(known.startswith(f"{name}.") for known in (*PATHS, *SECTIONS_LATER))


def _means_off(value: YamlNode) -> bool:
    """`enabled: false`, or nothing at all."""
    import yaml

    if isinstance(value, yaml.MappingNode):
        switch = [item.value for key, item in value.value if key.value == "enabled"]
        return not value.value or (len(switch) == 1 and str(switch[0]).lower() in FALSE)
    return bool(value.tag == NULL)


def _nearest_path(name: str) -> str:
    *above, last = name.split(".")
    for known in PATHS:  # the right key in the wrong place
        if known.rpartition(".")[2] == last and not PATHS[known][0].later:
            return f"; did you mean {known}?"
    sections = {known.split(".")[0] for known in PATHS}
    return did_you_mean(name, PATHS if above else [*sections, *PATHS]) or f"; see {PAGE}"


# The command line

PAGE = "docs/operate/configuration.md"


@dataclass(frozen=True, slots=True)
class CommandLine:
    given: list[Given]
    config: str | None = None
    print_config: bool = False
    as_json: bool = False


class _Record(argparse.Action):
    """Note the flag as it was written, beside its value."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        del parser
        assert option_string is not None
        namespace.given.append(Given(*FLAGS[option_string], values, Origin("flag", option_string)))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Misused([message])


def parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="rivvend",
        usage="rivvend [flags]",
        description="The rivven broker: a durable log that speaks the native protocol and Kafka's on one port.",
        epilog=f"A flag beats its RIVVEN_ variable, which beats the file, which beats the default. Details: {PAGE}",
        allow_abbrev=False,
        add_help=False,
    )
    first = made.add_argument_group("First of all")
    first.add_argument("-h", "--help", action="help", help="show this and exit")
    first.add_argument("-V", "--version", action="version", version=f"rivvend {__version__}", help="show the version")
    first.add_argument("--config", metavar="FILE", help="read settings from a YAML file (env RIVVEN_CONFIG)")
    first.add_argument("--print-config", action="store_true", help="show the settings and their origins, and exit")
    first.add_argument("--json", action="store_true", help="with --print-config: as JSON")
    defaults = Settings()
    groups = {}
    for setting in SETTINGS:
        if not setting.flags:
            continue
        if setting.group not in groups:
            title = "Accepted, but not available yet" if setting.group == "Later" else setting.group
            groups[setting.group] = made.add_argument_group(title)
        first_env = setting.env.split()[0].lstrip("!")
        groups[setting.group].add_argument(
            *(flag.lstrip("!") for flag in setting.all_flags),
            action=_Record,
            dest="given",
            metavar="BOOL" if setting.is_bool else setting.metavar or setting.unit.upper() or "VALUE",
            help=f"{setting.help} (default {setting.shown_default(defaults)}; env {first_env})".replace("%", "%%"),
            nargs="?" if setting.is_bool else None,
            const="true" if setting.is_bool else None,
        )
    made.set_defaults(given=None)
    return made


def parse_line(arguments: Sequence[str]) -> CommandLine:
    """Read a command line. Raises `Misused`; `--help` and `--version` print and raise SystemExit(0)."""
    found, unknown = parser().parse_known_args(arguments, argparse.Namespace(given=[]))
    problems = []
    for word in unknown:
        flag = word.split("=")[0]
        if flag.startswith("-"):
            near = did_you_mean(flag, [*FLAGS, "--config", "--print-config", "--json", "--help", "--version"])
            problems.append(f"unknown flag {flag}{near or '; see rivvend --help'}")
        elif len(unknown) == 1:
            problems.append(f"unexpected {word!r}: rivvend takes flags alone; see rivvend --help")
    if found.json and not found.print_config:
        problems.append("--json goes with --print-config; for logs in JSON say --log-format json")
    if problems:
        raise Misused(problems)
    return CommandLine(found.given, found.config, found.print_config, found.json)
