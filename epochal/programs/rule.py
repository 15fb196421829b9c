"""A rule that programs keep to, and the error that names it."""

from __future__ import annotations

from dataclasses import dataclass

from epochal.errors import PipelineError


@dataclass(frozen=True)
class Place:
    """Where something stands in the author's code."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class ProgramRefused(PipelineError):
    """The program cannot be translated to a dataflow."""

    slug = "program-refused"

    def __init__(self, message: str | None = None, rule: Rule | None = None, place: Place | None = None) -> None:
        super().__init__(message)
        self.rule = rule
        self.place = place


@dataclass(frozen=True)
class Rule:
    """``example``: the body of a program in which the line that ends with ``#!`` is refused, first of all."""

    slug: str
    title: str
    why: str
    fix: str
    example: str = ""

    def refuse(self, place: Place | None, what: str) -> ProgramRefused:
        """The error. ``what``: what was found, to begin a sentence with."""
        where = "" if place is None else f"{place}: "
        return ProgramRefused(f"{where}{what}: {self.why} {self.fix} [{self.slug}]", self, place)
