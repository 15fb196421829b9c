"""A preflight report for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from epochal.client.models import PartChange, Preflight, StateChange, Trial, TrialSink

_STYLES = {
    "same": "dim",
    "added": "green",
    "evolved": "yellow",
    "changed": "yellow",
    "dropped": "red",
    "refused": "red",
    "removed": "red",
}


def preflight_page(report: Preflight) -> RenderableType:
    at = "no snapshot yet" if report.snapshot is None else f"epoch {report.snapshot.epoch}"
    title = Text.assemble((report.application, "bold"), f" from {at}")
    verdict = Text("✓ it can go on", "bold green") if report.ok else Text("✗ it would be refused", "bold red")
    return Group(title, _table(report), *_said(report), *_trial(report.trial), verdict)


def _table(report: Preflight) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "name", "", "what"):
        table.add_column(column)
    parts: Sequence[tuple[str, Sequence[PartChange]]] = (
        ("operator", report.comparison.operators),
        ("source", report.comparison.sources),
        ("sink", report.comparison.sinks),
        ("entry", report.comparison.entries),
    )
    for kind, changes in parts:
        for part in changes:
            table.add_row(kind, part.name, Text(part.verdict, _STYLES.get(part.verdict, "")), _between(part))
    for change in report.comparison.tables:
        table.add_row("state", change.table, Text(change.verdict, _STYLES.get(change.verdict, "")), _columns(change))
        for difference in _differences(change):
            table.add_row("", "", "", difference)
    return table


def _between(part: PartChange) -> str:
    if part.verdict == "changed":
        return f"{part.before} → {part.after}"
    return (part.after if part.verdict == "added" else part.before) or ""


def _columns(change: StateChange) -> str:
    if change.verdict in ("added", "dropped"):
        return ""
    said = [f"+{column.name} {column.type}" for column in change.added]
    said += [f"{name} {before} → {after}" for name, (before, after) in change.widened.items()]
    said += [f"-{name}" for name in change.dropped]
    return ", ".join(said)


def _differences(change: StateChange) -> Iterator[Text]:
    """A line for each meaning that differs, for columns that count only later rows, and for code that differs."""
    for meaning in change.changed:
        name = meaning.what if meaning.column is None else f"{meaning.what} of {meaning.column}"
        accepted = " (accepted)" if meaning.accepted else ""
        yield Text(f"{name}: {meaning.before} → {meaning.after}{accepted}", "yellow")
    if change.partial:
        yield Text(f"counts later rows only: {', '.join(change.partial)}", "yellow")
    if change.code_changed:
        yield Text(f"code changed: {', '.join(change.code_changed)}", "dim")
    if change.unknown:
        yield Text("meaning not known: the older version stored no definition", "dim")


def _said(report: Preflight) -> Iterator[Text]:
    for problem in report.comparison.problems:
        yield Text.assemble(("✗ ", "red"), problem)
    for warning in report.comparison.warnings:
        yield Text.assemble(("! ", "yellow"), warning)
    if report.restarts:
        yield Text.assemble(("! ", "yellow"), "Spark's resources change: it takes effect by a restart.")


def _trial(trial: Trial | None) -> Iterator[Text]:
    if trial is None:
        return
    base = "the beginning" if trial.base is None else f"epoch {trial.base}"
    yield Text(f"trial: {trial.epochs} epochs from {base} again in {trial.seconds:.1f} s", "bold")
    for table in trial.tables:
        differing = table.different + table.only_before + table.only_after
        if not differing:
            yield Text(f"  {table.table}: {table.rows:,} rows, all the same", "green")
            continue
        yield Text(
            f"  {table.table}: {table.different:,} rows differ, {table.only_before:,} only now, "
            f"{table.only_after:,} only in the trial",
            "yellow",
        )
        for example in table.examples:
            yield Text(f"    {example}", "dim")
    for sink in trial.sinks:
        yield from _sink(sink)


def _sink(sink: TrialSink) -> Iterator[Text]:
    if not sink.only_before and not sink.only_after:
        yield Text(f"  {sink.sink}: {sink.after:,} rows out, all the same", "green")
    else:
        yield Text(
            f"  {sink.sink}: {sink.only_before:,} of {sink.before:,} rows out are no more, {sink.only_after:,} of "
            f"{sink.after:,} are new",
            "yellow",
        )
    for example in sink.examples:
        yield Text(f"    {'-' if example['version'] == 'before' else '+'} {example['row']}", "dim")
    if sink.committed not in (None, sink.before):
        yield Text(f"    it got {sink.committed:,} rows: other versions, or chance, had a part in them", "yellow")
