"""Settings as `rivvend` would have them, from flags, an environment and a file; or what it would complain about."""

import tempfile
from pathlib import Path

import pytest

from rivven.server.config import Resolved, resolve
from rivven.server.sources import Misused, parse_line


def settle(*flags: str, env: dict[str, str] | None = None, file: str | None = None) -> Resolved:
    if file is None:
        return resolve(parse_line(flags), env or {})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rivven.yaml")
        path.write_text(file)
        return resolve(parse_line(["--config", str(path), *flags]), env or {})


def problems(*flags: str, env: dict[str, str] | None = None, file: str | None = None) -> list[str]:
    with pytest.raises(Misused) as caught:
        settle(*flags, env=env, file=file)
    return caught.value.problems
