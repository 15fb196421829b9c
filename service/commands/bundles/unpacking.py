"""Reading of an uploaded bundle into a folder, in a separate process with limited memory and time.

The control plane parses no part of a bundle that this process has not checked. The folder holds ``header.json``,
``epochs.jsonl``, ``members.jsonl`` and the members, each under its checksum.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from epochal.errors import EpochalError, InvalidInput, SnapshotError, StorageFull, error_class
from epochal.snapshots.bundle_format import BundleEpoch, BundleError, BundleHeader
from epochal.snapshots.bundle_reading import BundleLimits, BundleReader, Member

HEADER, EPOCHS, MEMBERS = "header.json", "epochs.jsonl", "members.jsonl"

MEMORY_BYTES = 512 << 20
"""Limit on private memory (``RLIMIT_DATA``), without libraries."""
_SECONDS_AT_LEAST = 60
_BYTES_PER_SECOND = 4 << 20
"""Minimum rate of unpacked bytes per second of processor time."""

_WAITING = 10
"""Factor between processor time and elapsed time, for other load of the machine."""

_TOO_MUCH = "Reading the bundle exceeds the limits of memory or time: it was altered, or is too large."
member_form = TypeAdapter(Member)


class _Order(BaseModel):
    """``code_only``: the header and the artifacts, which come first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bundle: Path
    folder: Path
    limits: dict[str, int]
    code_only: bool
    memory_bytes: int
    seconds: int


class UnpackedBundle:
    """A bundle after reading and checking."""

    def __init__(self, folder: Path) -> None:
        self.header = BundleHeader.model_validate_json((folder / HEADER).read_bytes())
        self.folder = folder

    def epochs(self) -> list[BundleEpoch]:
        """The maximum is the number of manifests."""
        with (self.folder / EPOCHS).open("rb") as lines:
            return [BundleEpoch.model_validate_json(line) for line in lines]

    def snapshot(self) -> BundleEpoch | None:
        """The catalog's record of the exported epoch; an altered bundle may lack it."""
        with (self.folder / EPOCHS).open("rb") as lines:
            epochs = map(BundleEpoch.model_validate_json, lines)
            return next((epoch for epoch in epochs if epoch.key == self.header.snapshot.key), None)

    def members(self) -> Iterator[Member]:
        with (self.folder / MEMBERS).open("rb") as lines:
            for line in lines:
                yield member_form.validate_json(line)


@contextmanager
def unpacked(bundle: Path, folder: Path, limits: BundleLimits, code_only: bool = False) -> Iterator[UnpackedBundle]:
    """Read ``bundle`` into ``folder``, which is deleted after the block. Raises ``BundleError``, ``StorageFull``."""
    shutil.rmtree(folder, ignore_errors=True)  # of a killed control plane
    try:
        folder.mkdir(mode=0o700)
        unpacked_bytes = max(limits.small, limits.ratio * bundle.stat().st_size)
        order = _Order(
            bundle=bundle,
            folder=folder,
            limits=asdict(limits),
            code_only=code_only,
            memory_bytes=MEMORY_BYTES,
            seconds=_SECONDS_AT_LEAST + unpacked_bytes // _BYTES_PER_SECOND,
        )
        _in_a_process(order)
        yield UnpackedBundle(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _in_a_process(order: _Order) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "epochal.service.commands.bundles.unpacking"],
            input=order.model_dump_json().encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Arrow's own allocator reserves far more than it uses, which would be counted.
            env={**_environment(), "ARROW_DEFAULT_MEMORY_POOL": "system"},
            timeout=_WAITING * order.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BundleError(_TOO_MUCH) from None
    if done.returncode == 0:
        return
    try:
        problem = json.loads(done.stdout)
        kind = error_class(problem["slug"])
    except (ValueError, TypeError, KeyError):
        raise BundleError(_TOO_MUCH) from None
    raise (kind if kind is not None and issubclass(kind, InvalidInput | SnapshotError | StorageFull) else BundleError)(
        problem["message"]
    )


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}


def main() -> int:
    """The process: reads an order from standard input, writes the bundle's problem to standard output."""
    order = _Order.model_validate_json(sys.stdin.buffer.read())
    resource.setrlimit(resource.RLIMIT_DATA, (order.memory_bytes, order.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (order.seconds, order.seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _unpack(order)
    except MemoryError:
        return _failed(BundleError(_TOO_MUCH))
    except EpochalError as error:
        return _failed(error)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _failed(StorageFull(f"Not enough space to unpack the bundle in {order.folder}."))
        return _failed(BundleError(f"The bundle cannot be read: {type(error).__name__}."))
    except (ValidationError, RecursionError) as error:
        return _failed(BundleError(f"The bundle cannot be read: {type(error).__name__}."))
    return 0


def _unpack(order: _Order) -> None:
    with (
        BundleReader(order.bundle, order.folder, BundleLimits(**order.limits)) as reader,
        (order.folder / EPOCHS).open("wb") as epochs,
        (order.folder / MEMBERS).open("wb") as members,
    ):
        (order.folder / HEADER).write_text(reader.header.model_dump_json())
        for epoch in reader.epochs():
            epochs.write(epoch.model_dump_json().encode() + b"\n")
        for member in reader.members():
            if order.code_only and member.kind != "artifacts":
                return
            members.write(member_form.dump_json(member) + b"\n")


def _failed(error: EpochalError) -> int:
    answer: dict[str, Any] = {"slug": error.slug, "message": error.message}
    print(json.dumps(answer), flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
