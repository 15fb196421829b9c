"""Findings of checks of a control plane's environment, by its start and by ``epochal doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """``WARNING``: it works with a risk. ``FAILED``: a control plane refuses to start."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """``said``: a sentence that describes the finding. ``remedy``: empty if no action is needed."""

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
