"""The catalog's writes that drivers ask for. Each has two fault points: a control plane may die at either."""

from __future__ import annotations

from dataclasses import dataclass

from epochal.faults import FaultPoint, declare


@dataclass(frozen=True)
class Write:
    """``written``: all is in the open transaction. ``landed``: it is committed, and nobody has been told."""

    written: FaultPoint
    landed: FaultPoint


def _write(name: str, what: str) -> Write:
    return Write(
        declare(f"catalog.{name}-written", f"{what} is written, its transaction not committed"),
        declare(f"catalog.{name}-landed", f"{what} is committed, the driver has no answer"),
    )


BEGIN_ATTEMPT = _write("begin", "R1: the attempt that begins")
OPEN_EPOCH = _write("open", "E1: an epoch that is opened")
PREPARE_EPOCH = _write("prepare", "E4: the commit decision")
COMMIT_EPOCH = _write("commit", "E6: an epoch that is published")
ABORT_EPOCH = _write("abort", "an epoch that is aborted")
HEARTBEAT = _write("heartbeat", "a driver's report")
COMPLETE_DIRECTIVE = _write("complete", "an order that was carried out")
FINISH_ATTEMPT = _write("finish", "an attempt that ends")

TAKE_CALLS = Write(
    declare("calls.written", "calls of entries are written, their transaction not committed"),
    declare("calls.landed", "calls of entries are committed, the caller has no answer"),
)
"""Asked for by callers, who repeat it with their request ids."""

WRITES = (
    BEGIN_ATTEMPT,
    OPEN_EPOCH,
    PREPARE_EPOCH,
    COMMIT_EPOCH,
    ABORT_EPOCH,
    HEARTBEAT,
    COMPLETE_DIRECTIVE,
    FINISH_ATTEMPT,
)
