"""Small deltas in a folder of this machine: a file there is used only if it has the bytes that the manifest names."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4

import pytest
from fsspec.core import url_to_fs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from epochal.backends.machine_deltas import SLOTS, MachineDeltas, with_machine_deltas
from epochal.contracts.identity import EpochKey
from epochal.errors import FileMissing
from epochal.snapshots import layout
from epochal.snapshots.manifest import FileReference
from epochal.snapshots.packs import Pack
from epochal.snapshots.store import SnapshotStore

OF = "main/1"


def packed(store: SnapshotStore, epoch: int, contents: list[bytes], branch: str = "main") -> list[FileReference]:
    """Write a pack with the delta of one table for each subtask."""
    key = EpochKey(branch, epoch)
    files = {layout.delta(key, "totals", subtask): data for subtask, data in enumerate(contents)}
    pack = Pack.of(key, 1, files)
    store.write(pack.path, pack.beginning)
    return [
        FileReference(
            path=path, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data), rows=1, within=pack.places[path]
        )
        for path, data in files.items()
    ]


@dataclass
class Machine:
    """A remote store, the folder of a machine, and the files in it."""

    deltas: MachineDeltas
    folder: Path

    @classmethod
    def new(cls, folder: Path) -> Machine:
        deltas = with_machine_deltas(SnapshotStore(f"memory://machine-{uuid4().hex}"), str(folder))
        assert isinstance(deltas, MachineDeltas)
        return cls(deltas, folder)

    @property
    def store(self) -> SnapshotStore:
        """The remote store without the machine."""
        return SnapshotStore(self.deltas.url)

    def left(self) -> list[Path]:
        """Files in the folder. There is at most one for a subtask and slot."""
        return sorted(path for path in (self.folder / "deltas").rglob("*") if path.is_file())

    def close(self) -> None:
        filesystem, root = url_to_fs(self.deltas.url)
        with suppress(FileNotFoundError):
            filesystem.rm(root, recursive=True)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine.new(tmp_path / "cache")
    yield machine
    machine.close()


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def replaced_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def linked_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flipped,
    "a shorter file": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "an empty file": lambda path: path.write_bytes(b""),
    "a longer file": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "a foreign file": lambda path: path.write_bytes(b"of another program"),
    "a missing file": Path.unlink,
    "a folder": replaced_by_folder,
    "a link to itself": linked_to_itself,
}


def test_near_store_needs_no_folder(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path / "store"))
    assert with_machine_deltas(store, str(tmp_path / "cache")) is store


def test_delta_that_was_left_is_read_without_the_store(machine: Machine) -> None:
    [file] = packed(machine.store, 1, [b"delta"])
    machine.deltas.leave(file, b"delta")
    machine.store.delete(file.stored_in)
    of_another_process: MachineDeltas = pickle.loads(pickle.dumps(machine.deltas))
    assert of_another_process.read_file(file, OF) == b"delta"


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_missing_and_foreign_files_are_read_from_the_store(machine: Machine, damage: str) -> None:
    first, second = packed(machine.store, 1, [b"first delta", b"second delta"])
    machine.deltas.leave(first, b"first delta")
    machine.deltas.leave(second, b"second delta")
    assert len(machine.left()) == 2
    for path in machine.left():
        DAMAGE[damage](path)
    for file, data in ((first, b"first delta"), (second, b"second delta")):
        assert machine.deltas.bytes_of(file, OF) == machine.deltas.read_file(file, OF) == data
    machine.store.delete(first.stored_in)
    with pytest.raises(FileMissing):  # the damaged file was not used above either
        machine.deltas.read_file(first, OF)


def test_delta_of_an_undecided_run_is_not_taken_for_the_decided_one(machine: Machine) -> None:
    """Two runs of a task leave their deltas in the same place; the manifest names the first one's."""
    [decided] = packed(machine.store, 3, [b"decided"])
    [lost] = packed(machine.store, 3, [b"lost"])
    machine.deltas.leave(decided, b"decided")
    machine.deltas.leave(lost, b"lost")
    assert len(machine.left()) == 1
    assert machine.deltas.read_file(decided, OF) == b"decided"


def test_stores_branches_and_subtasks_have_separate_places(machine: Machine) -> None:
    other = MachineDeltas(SnapshotStore(f"{machine.deltas.url}-other"), str(machine.folder))
    files = [*packed(machine.store, 1, [b"a", b"b"]), *packed(machine.store, 1, [b"c"], branch="fork")]
    for file, data in zip(files, (b"a", b"b", b"c"), strict=True):
        machine.deltas.leave(file, data)
        other.leave(file, data)
    assert len(machine.left()) == 6


def test_number_of_files_is_limited(machine: Machine) -> None:
    for epoch in range(1, 3 * SLOTS):
        [file] = packed(machine.store, epoch, [b"%d" % epoch])
        machine.deltas.leave(file, b"%d" % epoch)
    assert len(machine.left()) == SLOTS


def test_folder_that_cannot_be_written_is_not_needed(machine: Machine) -> None:
    [file] = packed(machine.store, 1, [b"delta"])
    machine.folder.write_text("a file in the place of the folder")
    machine.deltas.leave(file, b"delta")
    assert machine.deltas.read_file(file, OF) == b"delta"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_folder_of_another_user_is_not_used(machine: Machine) -> None:
    [file] = packed(machine.store, 1, [b"delta"])
    machine.deltas.leave(file, b"delta")
    for path in (machine.folder / "deltas").iterdir():
        os.chown(path, 12345, 12345)
    machine.deltas.leave(file, b"delta")
    assert machine.deltas.read_file(file, OF) == b"delta"


class Interleaving(RuleBasedStateMachine):
    """Any order of leaving, damaging and reading gives the bytes of the store."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: list[tuple[FileReference, bytes]] = []

    @initialize()
    def begin(self) -> None:
        self.machine = Machine.new(Path(mkdtemp()) / "cache")

    @rule(
        epoch=st.sampled_from([1, 2, 1 + SLOTS, 1 + 2 * SLOTS]), contents=st.lists(st.binary(), min_size=1, max_size=3)
    )
    def write(self, epoch: int, contents: list[bytes]) -> None:
        self.contents += zip(packed(self.machine.store, epoch, contents), contents, strict=True)

    @precondition(lambda self: self.contents)
    @rule(chosen=st.integers(min_value=0))
    def leave(self, chosen: int) -> None:
        self.machine.deltas.leave(*self.contents[chosen % len(self.contents)])

    @precondition(lambda self: self.contents and self.machine.left())
    @rule(chosen=st.integers(min_value=0), how=st.sampled_from(sorted(DAMAGE)))
    def damage(self, chosen: int, how: str) -> None:
        left = [path for path in self.machine.left() if path.stat().st_size]
        if left:
            DAMAGE[how](left[chosen % len(left)])

    @precondition(lambda self: self.contents)
    @rule(one=st.integers(min_value=0), another=st.integers(min_value=0))
    def exchange(self, one: int, another: int) -> None:
        """A file has the content of another one."""
        left = self.machine.left()
        if left:
            left[one % len(left)].write_bytes(self.contents[another % len(self.contents)][1])

    @rule()
    def read(self) -> None:
        for file, data in self.contents:
            assert self.machine.deltas.read_file(file, OF) == data
            assert self.machine.deltas.bytes_of(file, OF) == data

    def teardown(self) -> None:
        self.read()
        self.machine.close()
        shutil.rmtree(self.machine.folder.parent, ignore_errors=True)


TestInterleaving = Interleaving.TestCase
