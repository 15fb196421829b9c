"""What is measured runs in a process of its own, one after the other: nothing is warm from what ran before."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

END_SECONDS = 60
"""For a process that was told to end, and stops what it has started."""


class NotMeasured(RuntimeError):
    """A process has failed, or took too long; with the end of what it said."""


def run_alone(command: Sequence[str], log: Path, limit_seconds: float, folder: Path | None = None) -> None:
    """Run ``command`` in ``folder``; both its outputs go to ``log``. It has ended when this returns or raises.

    Raises ``NotMeasured``.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    try:
        code: int | None = process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        process.terminate()  # it then stops whatever it has started
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        process.kill()
        process.wait()
    if code != 0:
        what = f"took longer than {limit_seconds:.0f} s" if code is None else f"failed, with exit code {code}"
        raise NotMeasured(f"{what}; the end of what it said:\n{log.read_text(errors='replace')[-3000:]}")
