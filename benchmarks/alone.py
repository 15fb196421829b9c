"""Measures run one after the other, each in a new process, so that no measure warms up the next."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

END_SECONDS = 60
"""Timeout for a terminated process, which first stops its own child processes."""


class NotMeasured(RuntimeError):
    """A process has failed or exceeded its time limit. The message ends with the last part of its output."""


def run_alone(command: Sequence[str], log: Path, limit_seconds: float, folder: Path | None = None) -> None:
    """Run ``command`` in ``folder`` to its end, with its output in ``log``.

    Raises ``NotMeasured``.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    try:
        code: int | None = process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        process.terminate()  # the process then stops its child processes
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        process.kill()
        process.wait()
    if code != 0:
        what = f"took longer than {limit_seconds:.0f} s" if code is None else f"failed, with exit code {code}"
        raise NotMeasured(f"{what}; the end of its output:\n{log.read_text(errors='replace')[-3000:]}")
