"""Builds the native twins, the descriptors of the protobuf dialect from `rivven.proto`, and the Kafka codecs.

Every `_*.pyx` below `src/` is one extension; each is optional.

Without a C compiler (or with `RIVVEN_NO_NATIVE=1`) the package installs all the same and runs on its pure
twins, which says so once when it is imported.
"""

import os
import runpy
import sys
from pathlib import Path
from subprocess import CalledProcessError

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

SOURCES = sorted(Path("src").rglob("_*.pyx"))


class BuildTwins(build_ext):
    """Builds what it can. A twin that fails to build leaves no older build of itself behind, and is named."""

    def run(self) -> None:
        self.missing: list[str] = []
        super().run()
        if self.missing:
            names = ", ".join(self.missing)
            print(f"rivven: no native {names}: the pure twins will be used, slower", file=sys.stderr)

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except (BaseError, CCompilerError, CalledProcessError, OSError) as error:  # it varies with setuptools
            print(f"rivven: {ext.name} does not compile: {error}", file=sys.stderr)
            self.missing.append(ext.name)
            built = Path(self.get_ext_fullpath(ext.name))
            built.unlink(missing_ok=True)
            Path("src", *ext.name.split(".")[:-1], built.name).unlink(missing_ok=True)


def extensions() -> list[Extension]:
    if os.environ.get("RIVVEN_NO_NATIVE"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        print("rivven: no Cython, so no native twins: the pure ones will be used", file=sys.stderr)
        return []
    modules = [
        Extension(
            ".".join(path.with_suffix("").parts[1:]),
            [str(path)],
            extra_compile_args=["-O3", "-fno-strict-aliasing"],
            depends=["setup.py", *(str(header) for header in sorted(path.parent.glob("_*.h")))],
        )
        for path in SOURCES
    ]
    directives = {"language_level": "3", "boundscheck": False, "wraparound": False, "cdivision": True}
    built = list(cythonize(modules, compiler_directives=directives, build_dir="build/cython"))
    for module in built:
        module.optional = True  # cythonize forgets it when it is said earlier
    return built


def describe_protocol() -> None:
    """Write `rivven.desc` anew if `rivven.proto` is newer; without protoc an older one has to do."""
    try:
        runpy.run_path("src/rivven/wire/generate.py", run_name="__main__")
    except ImportError as error:
        print(f"rivven: the protobuf dialect is not generated: {error}", file=sys.stderr)


def write_kafka_codecs() -> None:
    """Write `wire/kafka/made/` anew if `messages.json` or the generator is another."""
    runpy.run_path("src/rivven/wire/kafka/generate.py", run_name="__main__")


describe_protocol()
write_kafka_codecs()
setup(ext_modules=extensions(), cmdclass={"build_ext": BuildTwins})
