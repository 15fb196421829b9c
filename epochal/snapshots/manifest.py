"""The manifest of an epoch (design/state.md): canonical JSON; the catalog has its sha256.

Manifests are linked through ``parent``. With the files that they name they are sufficient to restart the application
elsewhere. All paths are relative to the store's root, so that a store can be moved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from epochal.contracts.catalog import Change, EpochCounts, ManifestReference
from epochal.contracts.conditions import Clock, Due, EpochConditions
from epochal.contracts.configuration import Parameters
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, PackPlace, StorePath
from epochal.contracts.source import Slice
from epochal.snapshots.layout import FORMAT, check_format_of
from epochal.state.expiry import StateClock
from epochal.state.table import Column, StateTable

PLACEMENT: Final = "placement"
PREVIOUS: Final = "previous_with_rows"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileReference(_Model):
    """A file of the store: path relative to the root, sha256 of its bytes, size in bytes, rows. ``within``: its place
    in a pack, for a small file; then ``path`` is only its name."""

    path: StorePath
    sha256: str
    bytes: int
    rows: int
    within: PackPlace | None = None

    @property
    def stored_in(self) -> str:
        """Path of the file that has the bytes: a pack, or the file itself."""
        return self.path if self.within is None else self.within.path

    @model_serializer(mode="wrap")
    def _without_default(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        members: dict[str, Any] = serialize(self)
        if self.within is None:
            del members["within"]
        return members


class DeltaFile(_Model):
    """The changes of one state table by one subtask in one epoch: key groups with ``kg % parallelism == subtask``."""

    table: str
    subtask: int
    parallelism: int
    file: FileReference


class FilePart(_Model):
    """A range of bytes of a file: offset, length and sha256."""

    offset: int
    bytes: int
    sha256: str


class BaseFile(_Model):
    """A sorted run: rows of a state table in the key groups ``first_group``, ``first_group + step``, .., up to and
    including ``last_group``.

    All runs of a table together have its rows at ``at``. Where several have a key, the one with the greatest ``age``
    decides; the oldest run of a key group has age 0. ``deletes``: the file has the column ``_op``, with deleted keys.
    ``clock``: of ``at``, by which rows of the run have expired; ``None`` if none has.
    ``index``: the part that a reader of some key groups reads first; ``None``: the file is read whole. ``columns``:
    :func:`columns_of` the table that wrote the file.
    """

    table: str
    at: EpochKey
    clock: StateClock | None = None
    first_group: int
    last_group: int
    step: int = Field(default=1, ge=1)
    age: int = Field(default=0, ge=0)
    deletes: bool = False
    columns: str = ""
    file: FileReference
    index: FilePart | None = None

    @property
    def groups(self) -> range:
        """Key groups of which the run has all rows of its age."""
        return range(self.first_group, self.last_group + 1, self.step)


class FileInFlight(_Model):
    """Records of a loop: the rows of a file from ``first`` on, up to and without ``last``."""

    file: FileReference
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first


class RecordsInFlight(_Model):
    """Records of a loop at a snapshot: those on its back edge, in order.

    ``columns``: columns of the files, which may also have ``_hop``. ``hop``: for an aligned loop, the number of epochs
    since it was empty, which is the hop of these records; 0 when it is idle. A loop without files and with a greater
    hop has converged in this epoch."""

    columns: tuple[Column, ...]
    files: tuple[FileInFlight, ...] = ()
    hop: int = 0

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class SinkHandles(_Model):
    """A sink's part of the epoch, which E5 commits. ``target``: see ``SinkBackend.target``."""

    kind: str
    target: str
    handles: tuple[Handle, ...]


def placement_extras(machines: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The member of :attr:`Manifest.extras` with the machine of each subtask, by operator; none for one machine."""
    names = sorted({name for found in machines.values() for name in found})
    if len(names) < 2:
        return {}
    numbers = {name: number for number, name in enumerate(names)}
    operators = {operator: [numbers[name] for name in found] for operator, found in sorted(machines.items())}
    return {PLACEMENT: {"machines": names, "operators": operators}}


def previous_extras(branch: str, before: Manifest | None, targets: Collection[str]) -> dict[str, Any]:
    """The member of :attr:`Manifest.extras` with the latest earlier epoch of the branch that has rows of a target, by
    target; none if no such epoch exists.

    ``before``: manifest of the parent. ``targets``: those for which it is recorded from this epoch on; an upgrade may
    have removed others, which stay recorded.
    """
    if before is None or before.branch != branch:
        return {}
    previous: dict[str, int] = dict(before.extras.get(PREVIOUS, {}))
    for part in before.sinks.values():
        if part.target in {*targets, *previous} and any(handle.rows for handle in part.handles):
            previous[part.target] = before.epoch
    return {PREVIOUS: previous} if previous else {}


class Manifest(_Model):
    """Snapshot ``(branch, epoch)``. ``extras``: members of optional features, by name."""

    format: int = Field(default=FORMAT, ge=FORMAT, le=FORMAT)
    application: str
    branch: str
    epoch: int
    parent: ManifestReference | None
    execution: str
    attempt: int
    artifact: str
    """sha256 of the artifact: the code version."""
    parameters: Parameters = {}
    parallelism: int
    parallelisms: dict[str, int] = {}
    """Number of subtasks of each operator that has another one than ``parallelism``."""
    max_parallelism: int
    slices: dict[str, Slice] = {}
    tables: tuple[StateTable, ...] = ()
    deltas: tuple[DeltaFile, ...] = ()
    bases: tuple[BaseFile, ...] = ()
    """If not empty: bases of every state table at one earlier epoch, at which walks of chains end."""
    source_checkpoints: dict[str, dict[str, Any]] = {}
    """With bases: checkpoints of all sources, which replace the slices up to and including this epoch's."""
    sinks: dict[str, SinkHandles] = {}
    loops: dict[str, RecordsInFlight] = {}
    """Records in flight, by loop: the only state of a loop."""
    changes: tuple[Change, ...] = ()
    extras: dict[str, Any] = {}
    """Optional members, by name."""
    conditions: EpochConditions
    """Conditions that the epoch ran with."""
    event_times: dict[str, dict[str, Any]] = {}
    """The declarations of event time by name, as ``EventTime.details`` has them."""
    due: dict[str, Due] = {}
    """Earliest due times after this epoch, by operator. Operators without due times are left out."""
    counts: EpochCounts = EpochCounts()
    created_at: datetime

    @property
    def key(self) -> EpochKey:
        return EpochKey(self.branch, self.epoch)

    def parallelism_of(self, operator: str) -> int:
        """Number of subtasks of an operator."""
        return self.parallelisms.get(operator, self.parallelism)

    @property
    def machines(self) -> dict[str, list[str]]:
        """The machine that ran each subtask, by operator; empty if all ran on one."""
        found = self.extras.get(PLACEMENT)
        if found is None:
            return {}
        names = found["machines"]
        return {operator: [names[number] for number in numbers] for operator, numbers in found["operators"].items()}

    def previous_with_rows(self, target: str) -> int | None:
        """The latest earlier epoch of this branch that has rows of a target; ``None`` if there is none. Recorded for
        sinks with ``SinkBackend.needs_previous``."""
        found: int | None = self.extras.get(PREVIOUS, {}).get(target)
        return found

    @property
    def clock(self) -> Clock:
        """Time of the epoch, including the times observed in its rows."""
        return self.conditions.clock

    @property
    def in_force(self) -> tuple[FileReference, ...]:
        """Files that it needs beside its state: records in flight and standing queries."""
        loops = (part.file for loop in self.loops.values() for part in loop.files)
        return (*loops, *([] if self.queries is None else [self.queries]))

    @property
    def queries(self) -> FileReference | None:
        """File of the epoch's standing queries, if any."""
        chosen = self.conditions.queries
        if chosen is None:
            return None
        return FileReference(
            path=chosen.path, sha256=chosen.sha256, bytes=chosen.bytes, rows=chosen.rows, within=chosen.within
        )

    @property
    def drained(self) -> bool:
        """True for the last epoch of a lineage: its input has ended, and any further row would be late."""
        return self.conditions.draining

    def encode(self) -> bytes:
        """Canonical JSON: sorted keys, no spaces, UTF-8."""
        return json.dumps(
            self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        ).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Manifest:
        """The inverse of :meth:`encode`. Raises ``NewerFormat``, naming the path; ``ValueError`` for an invalid
        manifest."""
        try:
            return cls.model_validate_json(data)
        except ValidationError:
            check_format_of(f"Manifest {path}", data)
            raise

    def reference(self, path: str) -> ManifestReference:
        return ManifestReference(
            branch=self.branch, epoch=self.epoch, path=path, sha256=hashlib.sha256(self.encode()).hexdigest()
        )
