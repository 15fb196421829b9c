"""Writes to the catalog that drivers request. Each has two fault points, at which a control plane may crash."""

from __future__ import annotations

from dataclasses import dataclass

from epochal.faults import FaultPoint, declare


@dataclass(frozen=True)
class Write:
    """``written``: everything is in the open transaction. ``landed``: it is committed, and the caller has no answer."""

    written: FaultPoint
    landed: FaultPoint


def _write(name: str, what: str) -> Write:
    return Write(
        declare(f"catalog.{name}-written", f"{what} is written, its transaction not committed"),
        declare(f"catalog.{name}-landed", f"{what} is committed, the driver has no answer"),
    )


BEGIN_ATTEMPT = _write("begin", "R1: the beginning of an attempt")
OPEN_EPOCH = _write("open", "E1: the opening of an epoch")
PREPARE_EPOCH = _write("prepare", "E4: the commit decision")
COMMIT_EPOCH = _write("commit", "E6: the publication of an epoch")
ABORT_EPOCH = _write("abort", "the abort of an epoch")
HEARTBEAT = _write("heartbeat", "a driver's report")
COMPLETE_DIRECTIVE = _write("complete", "the completion of a directive")
FINISH_ATTEMPT = _write("finish", "the end of an attempt")

TAKE_CALLS = Write(
    declare("calls.written", "calls of entries are written, their transaction not committed"),
    declare("calls.landed", "calls of entries are committed, the caller has no answer"),
)
"""Requested by callers, which repeat it with their request ids."""

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
