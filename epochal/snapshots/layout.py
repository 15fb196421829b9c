"""Layout and format of a store. All paths are relative to the store's root.

    {branch}/manifests/{epoch:010}-{attempt}-{unique}.json
    {branch}/manifests/{epoch:010}-{attempt}-{unique}-{size:010}.pack        small files of this size, then a manifest
    {branch}/epochs/{epoch:010}/{table}-{subtask:05}-{unique}.parquet        deltas
    {branch}/bases/{table}-{epoch:010}-{first}-{last}-{unique}.parquet
    {branch}/queries/{epoch:010}-{unique}.json                                 standing queries
    {branch}/loops/{epoch:010}/{loop}-{subtask:05}-{unique}.parquet          records in flight
    {branch}/logs/{sink}/{epoch:010}/{attempt}-{subtask:05}-{unique}.arrow   write-ahead logs
    epochal-store.json                                                       the owner of the store

Files of a control plane, each named by its catalog before it is written:

    artifacts/{sha256}/{unique}.py or .zip                                   code
    uploads/{upload}/{offset:015}-{unique}.part                              uploaded bundles
    exports/{operation}/{offset:015}-{unique}.part                           exported bundles
    imports/{operation}/{unique}.txt                                         files of an import, for its removal
    logs/{application}/{execution}-{attempt}-{unique}.log                    logs of ended drivers

The unique part lets two attempts at the same file write different paths, of which a manifest names at most one.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from epochal.contracts.identity import EpochKey
from epochal.errors import NewerFormat

OWNER = "epochal-store.json"
"""The only file that is overwritten: the owner of the store."""
TEMPORARY = ".tmp"
"""Suffix of files that are being written, or were when their process died; their names begin with a dot."""


_PACK = re.compile(r"-(?P<size>\d{10})\.pack$")


def manifests(branch: str) -> str:
    return f"{branch}/manifests"


def manifest(key: EpochKey, attempt: int) -> str:
    """A new path for the manifest of an epoch."""
    return f"{manifests(key.branch)}/{key.epoch:010}-{attempt}-{uuid4().hex}.json"


def pack(key: EpochKey, attempt: int, size: int) -> str:
    """A new path for a pack: ``size`` bytes of files, and the manifest of an epoch."""
    return f"{manifests(key.branch)}/{key.epoch:010}-{attempt}-{uuid4().hex}-{size:010}.pack"


def manifest_offset(path: str) -> int:
    """Offset of the manifest in its file: 0, or the size of the files of a pack."""
    found = _PACK.search(path)
    return int(found["size"]) if found is not None else 0


def by_epoch(paths: Iterable[str]) -> dict[int, list[str]]:
    """Paths of manifests, or of standing queries, by epoch, unfinished ones too."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in paths:
        number = path.rpartition("/")[2].lstrip(".").partition("-")[0]
        if number.isdigit():
            found[int(number)].append(path)
    return found


def deltas(key: EpochKey) -> str:
    """Folder of the deltas of an epoch."""
    return f"{key.branch}/epochs/{key.epoch:010}"


def delta(key: EpochKey, table: str, subtask: int) -> str:
    """A new path for one subtask's delta."""
    return f"{deltas(key)}/{table}-{subtask:05}-{uuid4().hex}.parquet"


def bases(branch: str) -> str:
    """The folder of a branch's bases."""
    return f"{branch}/bases"


def base(at: EpochKey, table: str, groups: range) -> str:
    """A new path for a run of some key groups."""
    return f"{bases(at.branch)}/{table}-{at.epoch:010}-{groups.start}-{groups[-1]}-{uuid4().hex}.parquet"


def loops(key: EpochKey) -> str:
    """Folder of records that an epoch put into loops."""
    return f"{key.branch}/loops/{key.epoch:010}"


def queries(branch: str) -> str:
    """The folder of the standing queries that a branch's epochs ran with."""
    return f"{branch}/queries"


def standing_queries(key: EpochKey) -> str:
    """A new path for the queries that an epoch, and those after it, run with."""
    return f"{queries(key.branch)}/{key.epoch:010}-{uuid4().hex}.json"


def records_of_loop(key: EpochKey, loop: str, subtask: int) -> str:
    """A new path for records that one subtask puts into a loop."""
    return f"{loops(key)}/{loop}-{subtask:05}-{uuid4().hex}.parquet"


OF_THE_CATALOG = frozenset({"artifacts", "uploads", "exports", "imports", "logs"})
"""Folders of files that the catalog names, not manifests. No branch has such a name."""


def artifact(sha256: str, ending: str) -> str:
    """A new path for an artifact's bytes."""
    return f"artifacts/{sha256}/{uuid4().hex}{ending}"


def part_of_upload(upload: str, offset: int) -> str:
    """A new path for a part of a bundle that arrives."""
    return f"uploads/{upload}/{offset:015}-{uuid4().hex}.part"


def part_of_export(operation: str, offset: int) -> str:
    """A new path for a part of a bundle that an operation has created."""
    return f"exports/{operation}/{offset:015}-{uuid4().hex}.part"


def list_of_import(operation: str) -> str:
    """A new path for the list of files that an import adds to the store."""
    return f"imports/{operation}/{uuid4().hex}.txt"


def driver_log(application: str, execution: str, attempt: int) -> str:
    """A new path for the end of a driver's log."""
    return f"{driver_logs(application)}/{execution}-{attempt}-{uuid4().hex}.log"


def driver_logs(application: str) -> str:
    """The folder of the logs of an application's drivers."""
    return f"logs/{application}"


LOGS = "logs"


def logs(key: EpochKey, sink: str) -> str:
    """The folder of the write-ahead logs of one sink and epoch."""
    return f"{key.branch}/{LOGS}/{sink}/{key.epoch:010}"


def log_segment(key: EpochKey, attempt: int, sink: str, subtask: int) -> str:
    """A new path for a segment of one subtask's write-ahead log."""
    return f"{logs(key, sink)}/{attempt}-{subtask:05}-{uuid4().hex}.arrow"


def attempt_of_log(path: str) -> int:
    """The attempt that wrote a segment, finished or not."""
    return int(path.rpartition("/")[2].lstrip(".").partition("-")[0])


def epoch_of_base(path: str) -> int | None:
    """Epoch in the path of a base, finished or not; ``None`` for other paths."""
    parts = path.rpartition("/")[2].rsplit("-", 4)
    return int(parts[1]) if len(parts) == 5 and parts[1].isdigit() else None


def table_of_delta(path: str) -> str | None:
    """The state table of a delta's path, or the loop of records' path, finished or not; ``None`` for any other."""
    name = path.rpartition("/")[2]
    if name.endswith(TEMPORARY):
        name = name.removeprefix(".").removesuffix(TEMPORARY).rpartition(".")[0]
    parts = name.removesuffix(".parquet").rsplit("-", 2)
    return parts[0] if name.endswith(".parquet") and len(parts) == 3 else None


def belongs_to(table: str, operator: str) -> bool:
    """True if the state table, by its id, belongs to the operator."""
    return table == operator or table.startswith(f"{operator}.")


Kind = Literal["manifest", "delta", "base", "loop", "queries", "log"]

_UNIQUE = r"[0-9a-f]{32}"
_PLACES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("manifest", re.compile(rf"manifests/(?P<epoch>\d{{10,}})-\d+-{_UNIQUE}(?:\.json|-\d{{10}}\.pack)")),
    ("delta", re.compile(rf"epochs/(?P<epoch>\d{{10,}})/[^/]+-\d{{5,}}-{_UNIQUE}\.parquet")),
    ("base", re.compile(rf"bases/[^/]+-(?P<epoch>\d{{10,}})-\d+-\d+-{_UNIQUE}\.parquet")),
    ("loop", re.compile(rf"loops/(?P<epoch>\d{{10,}})/[^/]+-\d{{5,}}-{_UNIQUE}\.parquet")),
    ("queries", re.compile(rf"queries/(?P<epoch>\d{{10,}})-{_UNIQUE}\.json")),
    ("log", re.compile(rf"{LOGS}/[^/]+/(?P<epoch>\d{{10,}})/\d+-\d{{5,}}-{_UNIQUE}\.arrow")),
)
_UNFINISHED = re.compile(rf"\.(?P<name>.+)\.[0-9a-f]{{8}}{re.escape(TEMPORARY)}")
_SCRATCH, _BRANCH_OF_AN_APPLICATION = re.compile("trial-.+"), re.compile(r".+-[0-9a-f]{8}")


def is_scratch(branch: str) -> bool:
    """True for folders of trials; false for branches of applications named ``trial-..``."""
    return bool(_SCRATCH.fullmatch(branch)) and not _BRANCH_OF_AN_APPLICATION.fullmatch(branch)


@dataclass(frozen=True, slots=True)
class Place:
    """Parts of a path. ``epoch``: the epoch for which the file was written; for a base, the epoch of its rows."""

    branch: str
    kind: Kind
    epoch: int
    finished: bool


def finished(path: str) -> str:
    """Final path of an unfinished file; other paths are unchanged."""
    folder, slash, name = path.rpartition("/")
    unfinished = _UNFINISHED.fullmatch(name)
    return path if unfinished is None else f"{folder}{slash}{unfinished['name']}"


def place_of(path: str) -> Place | None:
    """Parts of a path; ``None`` for a foreign path."""
    whole = finished(path)
    branch, _, rest = whole.partition("/")
    for kind, pattern in _PLACES:
        found = pattern.fullmatch(rest)
        if found is not None:
            return Place(branch, kind, int(found["epoch"]), whole == path)
    return None


FORMAT = 1
NAME = "format"


def newer_format(what: str, format: int) -> NewerFormat:
    """The error for ``what`` ("manifest main/manifests/1.json"), which has an unknown format."""
    return NewerFormat(f"{what} has format {format}; this version of Epochal reads {FORMAT}: upgrade Epochal.")


def check_format(what: str, about: Any) -> None:
    """Raise ``NewerFormat`` if the metadata ``about`` of a file has a later format."""
    format = about.get(NAME) if isinstance(about, dict) else None
    if isinstance(format, int) and format > FORMAT:
        raise newer_format(what, format)


def check_format_of(what: str, document: bytes) -> None:
    """Like :func:`check_format`, for a JSON document that could not be read."""
    try:
        about = json.loads(document)
    except ValueError:
        return
    check_format(what, about)
