"""Compaction in a separate process with low priority, so that epochs do not wait for it.

A low-priority thread would not help: it holds the interpreter's lock while other processes use the cores. The process
ends with the driver. Files that it wrote before are named by no manifest and are swept as after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from epochal.background.child_process import ChildProcess, answers_to_parent, messages_of_parent
from epochal.errors import EpochalError, SnapshotError, StorageFull
from epochal.snapshots.compaction import MergeJob, merge_runs
from epochal.snapshots.manifest import BaseFile
from epochal.snapshots.store import SnapshotStore

_NICENESS = 19
_PROBLEM = b"!"
"""First byte of an error line; other lines are bases, as JSON."""
_FULL = b"full "


@dataclass(frozen=True)
class MergingProcess:
    """Runs jobs in order, and yields each file when it is durable."""

    store: SnapshotStore

    def __call__(self, jobs: Sequence[MergeJob]) -> Iterator[BaseFile]:
        """Raises ``StorageFull``, and ``SnapshotError`` for anything else that ends the process early."""
        process = ChildProcess(__name__)
        try:
            process.send((self.store, tuple(jobs)))
            for line in process.answers:
                if line.startswith(_PROBLEM):
                    raise _problem(line[1:].strip())
                yield BaseFile.model_validate_json(line)
            if code := process.wait():
                raise SnapshotError(f"The compaction process ended with exit code {code}. See the driver's log.")
        finally:
            process.end()


def _problem(message: bytes) -> EpochalError:
    if message.startswith(_FULL):
        return StorageFull(message.removeprefix(_FULL).decode())
    return SnapshotError(f"The compaction failed: {message.decode()}")


def main() -> int:
    """Main function of the process: receives store and jobs."""
    os.nice(_NICENESS)
    answers = answers_to_parent()
    store, jobs = next(messages_of_parent())
    try:
        for base in merge_runs(store, jobs):
            answers.write(base.model_dump_json().encode() + b"\n")
            answers.flush()
    except EpochalError as error:
        kind = _FULL if isinstance(error, StorageFull) else b""
        answers.write(_PROBLEM + kind + str(error).replace("\n", " ").encode() + b"\n")
        answers.flush()
        return 1
    return 0
