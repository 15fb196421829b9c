"""Compaction in a separate process with low priority, so that epochs do not wait for it.

A low-priority thread would not help: it holds the interpreter's lock while other processes use the cores. The process
ends with the driver. Files that it wrote before are named by no manifest and are swept as after a crash.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from epochal.background.task import BackgroundTask
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
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "epochal.engine.compaction_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):  # the exit code is checked below
                pickle.dump((self.store, tuple(jobs)), process.stdin)
                process.stdin.flush()
            for line in process.stdout:
                if line.startswith(_PROBLEM):
                    raise _problem(line[1:].strip())
                yield BaseFile.model_validate_json(line)
            if code := process.wait():
                raise SnapshotError(f"The compaction process ended with exit code {code}. See the driver's log.")
        finally:
            process.kill()
            process.wait()
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()


def _problem(message: bytes) -> EpochalError:
    if message.startswith(_FULL):
        return StorageFull(message.removeprefix(_FULL).decode())
    return SnapshotError(f"The compaction failed: {message.decode()}")


def main() -> int:
    """Main function of the process: reads store and jobs from standard input, which the driver keeps open while it
    runs."""
    os.nice(_NICENESS)
    store, jobs = pickle.load(sys.stdin.buffer)
    BackgroundTask("driver", _end_with_driver)
    answers = sys.stdout.buffer
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


def _end_with_driver() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
