"""Common parts of the sinks that publish an epoch as one folder: names, the folder's owner, checks.

Layout, below the sink's own folder::

    epoch=0000000012/part-00001-{unique}.parquet      visible: one folder per epoch that has rows
    _epochal.json                                     whose folder this is: application and branch
    _aside/epoch=0000000013/part-..                   moved aside by a rollback, see below
    _staging/{branch}/{epoch}-{attempt}-{subtask}-{unique}.parquet    pre-committed, or lost attempts
    _staging/{branch}/e0000000012/                    an epoch while it is being committed

A folder belongs to one branch at a time. After a rollback the new branch takes it over from the application's other
branches. Their staged files are deleted, so that a late driver of theirs can no longer publish an epoch. Their visible
epochs stay, or move to ``_aside`` if requested. No two branches of an application use the same epoch number, so a
folder's name identifies its branch. Epochs that belong to the new branch's lineage are moved back from ``_aside``."""

from __future__ import annotations

import json
import posixpath
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from epochal.contracts.catalog import Succession
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import SchemaError, SinkAhead, SinkError
from epochal.state.types import shown_type

OWNER_FILE = "_epochal.json"
STAGING = "_staging"
ASIDE = "_aside"
_SHOWN = "epoch="


@dataclass(frozen=True)
class FileNames:
    """File names of one task attempt, without folders: staged and visible."""

    staged: str
    final: str


def new_names(task: TaskScope, format: str) -> FileNames:
    """Return names that are unique to this task attempt."""
    unique = uuid.uuid4().hex
    return FileNames(
        staged=f"{task.epoch.epoch:010}-{task.epoch.attempt}-{task.subtask:05}-{unique}.{format}",
        final=f"part-{task.subtask:05}-{unique}.{format}",
    )


@dataclass(frozen=True)
class StagedFile:
    """Description of one file in a handle: names without folders, length in bytes, sha256 in hexadecimal."""

    staged: str
    final: str
    length: int
    sha256: str

    @classmethod
    def of(cls, handle: Handle) -> StagedFile | None:
        """Return ``None`` for a task that had no rows."""
        payload = handle.payload
        if not payload:
            return None
        # A name that contains a folder would lead out of the sink's own.
        staged, final = (posixpath.basename(payload[name]) for name in ("staged", "final"))
        return cls(staged, final, int(payload["length"]), str(payload["sha256"]))


def staged_files(handles: Sequence[Handle]) -> list[StagedFile]:
    """The files that the handles name."""
    return [file for file in map(StagedFile.of, handles) if file is not None]


def is_swept(name: str, epoch: EpochScope) -> bool:
    """Return whether this is a staged file of exactly this epoch, of this attempt or an earlier one."""
    number, _, rest = name.partition("-")
    return number == f"{epoch.epoch:010}" and int(rest.partition("-")[0]) <= epoch.attempt


def shown_folder(epoch: int) -> str:
    """The folder in which readers see an epoch."""
    return f"{_SHOWN}{epoch:010}"


def gathering_folder(epoch: int) -> str:
    """Staging folder in which an epoch's files are gathered."""
    return f"e{epoch:010}"


def is_visible(name: str) -> bool:
    """Return whether readers (Spark, Hive) read files with this name."""
    return not name.startswith((".", "_"))


@dataclass(frozen=True)
class FolderOwner:
    """Owner of a sink's folder: one branch of one application.

    ``after``: the folder may hold epochs of its previous branches up to this one.
    """

    application: str
    branch: str
    after: int = 0

    @classmethod
    def of(cls, epoch: EpochScope, succession: Succession | None = None) -> FolderOwner:
        return cls(epoch.application, epoch.branch, 0 if succession is None else succession.last)

    @classmethod
    def decode(cls, text: str | bytes) -> FolderOwner:
        found = json.loads(text)
        return cls(application=found["application"], branch=found["branch"], after=int(found.get("after", 0)))

    def is_same(self, other: FolderOwner) -> bool:
        return (self.application, self.branch) == (other.application, other.branch)

    def encode(self) -> str:
        return json.dumps(asdict(self), sort_keys=True) + "\n"


def check_owner(where: str, owner: FolderOwner, mine: FolderOwner) -> None:
    """Raises ``SinkError`` when the folder has another owner. ``where``: ``The files sink's folder /data``."""
    if owner.application == mine.application and owner.branch != mine.branch:
        raise SinkError(
            f"{where} belongs to application {owner.application!r}, branch {owner.branch}, and this is branch "
            f"{mine.branch}: another run wrote it. To continue that run, set its directory (`epochal run "
            "--directory`, or directory= of pipeline.run()); a run without a directory always begins with empty "
            "state. To start over, delete the folder; to keep it, choose another one."
        )
    if not owner.is_same(mine):
        raise SinkError(
            f"{where} belongs to application {owner.application!r}, branch {owner.branch}. "
            f"Name another folder for application {mine.application!r}, branch {mine.branch}."
        )


def check_unowned(where: str, names: Iterable[str]) -> None:
    """Raises ``SinkError`` when a folder without an owner already holds visible files."""
    foreign = next((name for name in sorted(names) if is_visible(name)), None)
    if foreign is not None:
        raise SinkError(f"{where} already holds other files ({foreign}). Use an empty or a new folder.")


def check_not_ahead(where: str, names: Iterable[str], epoch: EpochScope, owner: FolderOwner) -> None:
    """Raises ``SinkAhead`` when the folder shows an epoch that is later than the application's state."""
    latest = max(shown_epochs(names), default=0)
    if latest > max(epoch.epoch, owner.after):
        raise SinkAhead.of(where, latest, epoch.application, epoch.epoch)


def shown_epochs(names: Iterable[str]) -> dict[int, str]:
    """The folders of epochs among names, by number."""
    found = {name.removeprefix(_SHOWN): name for name in names if name.startswith(_SHOWN)}
    return {int(number): name for number, name in found.items() if number.isdigit()}


def to_move_aside(names: Iterable[str], succession: Succession) -> list[str]:
    """Return the visible folders that a rollback moves aside."""
    if not succession.move_aside:
        return []
    return [name for epoch, name in shown_epochs(names).items() if succession.is_left_behind(epoch)]


def to_move_back(names: Iterable[str], succession: Succession) -> list[str]:
    """Return the folders moved aside by an earlier rollback that belong to the branch."""
    return [name for epoch, name in shown_epochs(names).items() if not succession.is_left_behind(epoch)]


def check_complete(folder: str, there: Mapping[str, int], expected: Mapping[str, int]) -> None:
    """Raises ``SinkError`` unless an epoch's folder holds exactly its files. Lengths in bytes by final name."""
    visible = {name: length for name, length in there.items() if is_visible(name)}
    if visible != expected:
        odd = sorted(set(visible.items()) ^ set(expected.items()))
        raise SinkError(
            f"{folder} does not contain exactly the files of its epoch: {odd[0][0]} is missing, unexpected or "
            "changed. Another program has written there: move that folder away, and restore the epoch's own files."
        )


def check_columns(where: str, format: str, schema: pa.Schema) -> None:
    """Raises ``SchemaError`` for a column that the folders or the format cannot hold."""
    if "epoch" in {name.casefold() for name in schema.names}:
        raise SchemaError(f"{where}: a column cannot be named 'epoch', as the folders are. Rename the column.")
    for field in schema:
        unfit = pa.types.is_nested(field.type) or pa.types.is_binary(field.type) or pa.types.is_duration(field.type)
        if format == "csv" and unfit:
            raise SchemaError(
                f"{where}: CSV cannot hold column {field.name!r} ({shown_type(field.type)}). "
                "Write parquet or json, or cast it."
            )
