"""A disk that is really full: a small file system of its own, in a mount namespace that ends with its holder."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from writing import WAIT_S, History, check, reopened, writing

from rivven.errors import DiskFull

MIB = 1024 * 1024
ROOM_MIB = 8


@dataclass
class SmallDisk:
    """A mounted file system that only processes in the holder's namespace see."""

    holder: int
    mount: Path

    @property
    def enter(self) -> list[str]:
        return ["nsenter", "-t", str(self.holder), "-m", "--"]

    @property
    def seen(self) -> Path:
        """The mount as this process sees it."""
        return Path(f"/proc/{self.holder}/root{self.mount}")


@contextmanager
def holding(tmp_path: Path, mount: str) -> Iterator[SmallDisk]:
    place = tmp_path / "disk"
    place.mkdir()
    script = f"{mount} {place} && echo mounted && exec cat"
    command = ["unshare", "-m", "sh", "-c", script]
    if any(shutil.which(name) is None for name in ("unshare", "nsenter", "mount")):
        pytest.skip("NOT TESTED: a full disk. unshare, nsenter and mount are needed (util-linux)")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if holder.stdout.readline() != "mounted\n":
                pytest.skip(f"NOT TESTED: a full disk. It cannot be mounted here: {holder.stderr.read().strip()}")
            yield SmallDisk(holder.pid, place)
        finally:
            holder.kill()
            holder.wait(WAIT_S)


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    mount = f"mount -t tmpfs -o size={ROOM_MIB}m none"
    if request.param == "ext4":
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("NOT TESTED: a full ext4. mkfs.ext4 is missing (apt install e2fsprogs)")
        image = tmp_path / "image"
        image.touch()
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image, f"{ROOM_MIB + 4}m"], check=True, timeout=WAIT_S)
        mount = f"mount -o loop {image}"
    with holding(tmp_path, mount) as disk:
        yield disk


OPTIONS = ("--value-bytes", 5000, "--segment-bytes", 100_000, "--wal-file-bytes", 256 * 1024)


@pytest.mark.parametrize("policy", ["every_write", "none"])
def test_a_full_disk_refuses_writes_serves_reads_and_goes_on_when_there_is_room(
    small_disk: SmallDisk, policy: str
) -> None:
    history = History()
    data, ballast = small_disk.mount / "data", small_disk.seen / "ballast"
    ballast.write_bytes(bytes(3 * MIB))
    options = (*OPTIONS, "--threads", 1, "--on-full", "ask", "--sync-policy", policy)
    with writing(data, history, *options, prefix=small_disk.enter) as writer:
        writer.wait_for("read")
        acknowledged = len(history.acks)
        assert writer.lines[-2].startswith("full ")
        assert writer.lines[-1] == f"read {3 * acknowledged}", "reads go on, and show what was acknowledged"
        writer.tell("try again, though nothing was freed")
        writer.wait_for("read")
        ballast.unlink()
        writer.tell("go on")
        writer.wait_for("ack", 60)
        writer.kill()
    with reopened(small_disk.seen / "data") as store:
        check(store, history)


def test_several_writers_on_a_full_disk_go_on_when_there_is_room(small_disk: SmallDisk) -> None:
    history = History()
    data, ballast = small_disk.mount / "data", small_disk.seen / "ballast"
    ballast.write_bytes(bytes(3 * MIB))
    options = (*OPTIONS, "--threads", 4, "--on-full", "ask")
    with writing(data, history, *options, prefix=small_disk.enter) as writer:
        with suppress(AssertionError):  # refused, or all of them waiting in silence for a write-ahead file
            writer.wait_for("read")
        ballast.unlink()
        writer.tell("go on\n" * 400)
        heard = len(history.acks)
        while len(history.acks) < heard + 20:  # who gets the room that was made is not for us to say
            writer.wait_for("ack")
        writer.kill()
    with reopened(small_disk.seen / "data") as store:
        check(store, history)


def fill_up(ballast: Path) -> None:
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1024)):
            pass


def test_a_store_on_a_full_disk_keeps_all_it_has_through_restarts(small_disk: SmallDisk) -> None:
    history = History()
    data, ballast = small_disk.mount / "data", small_disk.seen / "ballast"
    ballast.write_bytes(bytes(3 * MIB))
    for run in range(3):
        with writing(data, history, *OPTIONS, "--run", run, prefix=small_disk.enter) as writer:
            try:
                code = writer.wait_for_end()
            except AssertionError:  # all of them wait in silence for a write-ahead file, which needs room too
                assert "PrepareSpare: no room on the disk" in writer.errors
                writer.kill()
                continue
            assert code == 3
            assert "writer: DiskFull: no room on the disk" in writer.errors.splitlines()[-1]
    fill_up(ballast)
    try:
        store = reopened(small_disk.seen / "data")
    except DiskFull:
        ballast.unlink()
        store = reopened(small_disk.seen / "data")
    with store:
        check(store, history)
