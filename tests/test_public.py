"""What `import rivven` offers: nothing missing, nothing extra, nothing heavy."""

import subprocess
import sys
import tomllib
from pathlib import Path

import rivven
from rivven import errors

ROOT = Path(__file__).parents[1]
HEAVY = ("pyarrow", "pyspark", "pydantic", "typer", "rich", "asyncio", "kopf", "lightkube")


def test_every_listed_name_exists():
    assert [name for name in rivven.__all__ if not hasattr(rivven, name)] == []


def test_every_public_name_is_listed():
    public = {name for name in dir(rivven) if not name.startswith("_")} - {"blocking"}  # which is a module
    assert public == set(rivven.__all__)


def test_the_blocking_client_is_a_module_of_its_own():
    code = "import rivven.blocking; print(rivven.blocking.connect.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == ["connect"]


def test_names_are_listed_once():
    assert len(rivven.__all__) == len(set(rivven.__all__))


def test_every_error_of_the_tree_is_offered():
    tree = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.RivvenError)
    }
    assert tree <= set(rivven.__all__)


def test_the_version_is_that_of_the_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert rivven.__version__ == project["version"]


def test_importing_rivven_loads_nothing_heavy():
    code = f"import sys, rivven; print(*(name for name in {HEAVY} if name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == []


def test_connect_stays_a_function_whoever_has_imported_the_package_of_that_name():
    code = "import rivven, rivven.connect.sdk, inspect; print(inspect.iscoroutine(rivven.connect('localhost:1')))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
