"""What `rivvend` goes by: its four sources weighed against one another, and the outcome shown.

A flag beats the environment, which beats the file, which beats the default. Invariant: a `Resolved` is whole and
checked. Whatever is wrong is gathered, and each line names the key, the reason and what to write instead.
`python -m rivven.server.config` prints the page for the documentation.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import IO, Any

from rivven import __version__

from .settings import SECTIONS_LATER, SETTINGS, Setting, Settings
from .sources import (
    DEFAULT,
    CommandLine,
    Given,
    Misused,
    Origin,
    is_section,
    not_yet,
    read_environment,
    read_file,
)
from .values import show


@dataclass(frozen=True, slots=True)
class Resolved:
    settings: Settings
    origins: dict[str, Origin]
    """By field of the settings; what is not here is a default."""
    warnings: list[str] = field(default_factory=list)


def resolve(line: CommandLine, environment: Mapping[str, str]) -> Resolved:
    """Weigh the four sources against one another. Raises `Misused` with everything that is wrong."""
    problems: list[str] = []
    warnings: list[str] = []
    path = line.config or environment.get("RIVVEN_CONFIG")
    from_file = read_file(path, problems) if path else []
    from_environment = read_environment(environment, problems, warnings)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for source in (from_file, from_environment, line.given):
        # What fills two fields comes first: what fills one of them is more specific.
        for given in sorted(source, key=lambda given: -len(given.setting.fields)):
            for name, value in _parsed(given, problems).items():
                values[name] = value
                origins[name] = given.origin
    settings = Settings(**values)
    if not problems:
        problems += check(settings, origins)
    if problems:
        raise Misused(problems)
    return Resolved(settings, origins, warnings)


def _parsed(given: Given, problems: list[str]) -> dict[str, Any]:
    """The fields and what they become; nothing if the value is wrong, or of a feature that is yet to come."""
    setting = given.setting
    try:
        value = setting.parse(given.text)
    except ValueError as error:
        problems.append(f"{given.origin}: {'the value is malformed' if setting.secret else error}")
        return {}
    if given.negated:
        value = not value
    if setting.later and setting.harmless is not None and value not in (setting.default, *setting.harmless):
        problems.append(f"{given.origin}: {not_yet(setting.later)}; leave it out, or at {show(setting.default)}")
    names = setting.fields
    return dict(zip(names, value if len(names) > 1 else [value], strict=True)) if names else {}


def check(settings: Settings, origins: Mapping[str, Origin]) -> list[str]:
    """What is wrong with values that are right each for itself."""

    def at(name: str) -> Origin:
        return origins.get(name, DEFAULT)

    problems = []
    listeners = [(settings.bind_host, "bind_host", "--bind 127.0.0.1:9092")]
    if settings.http_port:
        listeners.append((settings.http_host, "http_host", "--http-host 127.0.0.1"))
    for host, name, instead in listeners:
        if not settings.allow_anonymous and not _is_loopback(host):
            problems.append(
                f"{at(name)}: {host} can be reached from other machines, and nobody would have to say who they are; "
                f"use {instead}, or say --allow-anonymous if that is meant"
            )
    if settings.http_port and (settings.http_host, settings.http_port) == (settings.bind_host, settings.bind_port):
        problems.append(
            f"{at('http_port')}: HTTP and clients cannot share port {settings.http_port}; "
            "give --http-port another, or 0"
        )
    for low, high in (
        ("group_min_session_timeout_ms", "group_max_session_timeout_ms"),
        ("group_consumer_heartbeat_ms", "group_consumer_session_timeout_ms"),
    ):
        if getattr(settings, low) > getattr(settings, high):
            problems.append(
                f"{at(low)}: {low} {getattr(settings, low)} is above {high} {getattr(settings, high)}; "
                "lower the one or raise the other"
            )
    if settings.max_inflight_bytes < settings.max_request_size:
        problems.append(
            f"{at('max_inflight_bytes')}: max_inflight_bytes {settings.max_inflight_bytes} has no room for one "
            f"request of max_request_size {settings.max_request_size}; raise the one or lower the other"
        )
    return problems


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# Showing it


def secrets() -> set[str]:
    return {name for setting in SETTINGS if setting.secret for name in setting.fields}


def print_config(resolved: Resolved, out: IO[str], *, as_json: bool = False) -> None:
    """Every setting, its value, and where it came from. Secrets are not shown."""
    hidden = secrets()
    rows = {}
    for item in fields(Settings):
        value = getattr(resolved.settings, item.name)
        shown = "(set, not shown)" if item.name in hidden and value else value
        rows[item.name] = shown, resolved.origins.get(item.name, DEFAULT)
    if as_json:
        page = {
            name: {"value": value, "source": origin.source, "key": origin.key or None, "file": origin.file or None}
            for name, (value, origin) in rows.items()
        }
        print(json.dumps({"version": __version__, "settings": page}, indent=2), file=out)
        return
    wide = max(map(len, rows)), max(len(show(value)) for value, _ in rows.values())
    for name, (value, origin) in rows.items():
        where = origin.source if origin is DEFAULT else f"{origin.source} {origin}"
        print(f"{name:{wide[0]}}  {show(value):{wide[1]}}  {where}", file=out)


def docs_page() -> str:
    """docs/operate/configuration.md."""
    groups: dict[str, list[Setting]] = {}
    for setting in SETTINGS:
        groups.setdefault(setting.group, []).append(setting)
    lines = [INTRODUCTION]
    for group, rows in groups.items():
        lines.append(f"\n## {LATER_TITLE if group == 'Later' else group}\n")
        if group == "Later":
            lines.append(LATER_TEXT)
        lines += ["| flag | environment | in the file | default | what it is |", "|---|---|---|---|---|"]
        for row in rows:
            cells = [_code(row.all_flags), _code(row.env.split()), _code(row.paths.split()), _doc_default(row)]
            lines.append(f"| {' | '.join(cells)} | {row.help}{f' ({row.unit})' if row.unit else ''} |")
    sections = ", ".join(f"`{name}`" for name in SECTIONS_LATER if not is_section(name))
    lines.append(f"\nSections of a file that are taken with `enabled: false` only: {sections}.")
    return "\n".join(lines) + "\n"


def _code(keys: list[str]) -> str:
    return "<br>".join(f"`{key.lstrip('!')}`" for key in keys) or "-"


def _doc_default(row: Setting) -> str:
    special = {"node_id": "host name, port", "advertise_host advertise_port": "bind address"}
    return special.get(row.into) or f"`{row.shown_default(Settings())}`"


INTRODUCTION = """\
# Configuration

<!-- Written by `python -m rivven.server.config`; a test holds it to the code. -->

`rivvend` needs none: without a word it keeps its data in `./data`, serves clients on 127.0.0.1:9092 and HTTP on
127.0.0.1:8080. Whatever is said differently is said by a flag, by an environment variable or in a YAML file, and
**a flag beats the environment, which beats the file, which beats the default**. `rivvend --print-config` shows
the result and where each value came from, with `--json` for programs. What is wrong is named, all of it at once,
and `rivvend` ends with code 2.

```yaml
# rivvend --config rivven.yaml, or RIVVEN_CONFIG=rivven.yaml
server:
  bind_address: 127.0.0.1:9092
  http_port: 8080
storage:
  data_dir: /var/lib/rivven
  sync_policy: every_write
quotas:
  defaults:
    produce_bytes_rate: 50MiB
```

Sizes are bytes, or have a unit: `512KiB`, `1GiB`, `10MB`. A switch is `true` or `false`; as a flag it needs no
value, and `--no-...` turns it off. Limits that are off say `none`.

An address other than loopback is refused unless `--allow-anonymous` says that everybody who reaches it may come
in. An unknown flag or key in the file is an error that names the nearest there is; an unknown `RIVVEN_` variable
is a warning, since it may be meant for another program."""

LATER_TITLE = "Accepted, but not available yet"
LATER_TEXT = """\
These are known, so that a file or a unit that names them works as long as it leaves them at their defaults.
Anything else is refused with the name of the feature that is missing; of copies, 1 is taken, too, since that is
what there is.
"""


if __name__ == "__main__":
    print(docs_page(), end="")
