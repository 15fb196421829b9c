"""What a check of a control plane's surroundings finds. The start and ``epochal doctor`` make the same checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """``WARNING``: it works, and something could go wrong. ``FAILED``: a control plane refuses to start."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """``said``: what was found, a sentence. ``remedy``: what to do, empty where nothing is to be done."""

    check: str
    verdict: Verdict
    said: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        return f"{self.said} {self.remedy}".strip()


def ok(check: str, said: str) -> Finding:
    return Finding(check, Verdict.OK, said)


def warning(check: str, said: str, remedy: str) -> Finding:
    return Finding(check, Verdict.WARNING, said, remedy)


def failed(check: str, said: str, remedy: str) -> Finding:
    return Finding(check, Verdict.FAILED, said, remedy)
