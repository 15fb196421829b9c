"""``doctor``: what a control plane would find here, in one table."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from epochal.cli.failures import ExitCode
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import Json
from epochal.cli.output import Output
from epochal.cli.settings import Arguments, with_settings
from epochal.service.domain.checks import Finding, Verdict

app = typer.Typer()

_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "bold red"}


@app.command()
@with_settings("home", "database_url", "store")
def doctor(arguments: Arguments, as_json: Json = False) -> None:
    """Check what a control plane with these settings needs, and say what to do. Changes nothing; fails (1) when it
    would refuse to start, or could not run a driver."""
    # Imported here only: the other commands need no database and shall start quickly.
    from epochal.service.commands.doctor import examine

    settings = arguments.load().settings
    output = Output.make(as_json)
    with output.busy("Looking"):
        findings = examine(settings)
    output.result({"sound": _sound(findings), "checks": findings}, _view(findings))
    if not _sound(findings):
        raise typer.Exit(int(ExitCode.FAILED))


def _sound(findings: Sequence[Finding]) -> bool:
    return all(finding.verdict is not Verdict.FAILED for finding in findings)


def _view(findings: Sequence[Finding]) -> RenderableType:
    table = Listing(Column("check"), Column(""), Column("found", flexible=True, folds=True))
    for finding in findings:
        table.add(finding.check, Text(finding.verdict.value, style=_STYLES[finding.verdict]), finding.said)
    todo = [finding for finding in findings if finding.remedy]
    return Group(
        table,
        *(Text.assemble((f"{finding.check}: ", _STYLES[finding.verdict]), finding.remedy) for finding in todo),
    )
