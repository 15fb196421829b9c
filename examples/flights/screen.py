"""Output of the demo: chapters, the commands to type, and a line for each decided epoch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from epochal.client import Epoch
from epochal.client.applications import ApplicationHandle
from epochal.errors import EpochalError

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
COLOURS = {"flights": "cyan", "strict": "magenta"}
PATIENCE_SECONDS = 300


class TooSlow(EpochalError):
    """The demo waited too long."""


def chapter(title: str, explanation: str = "") -> None:
    console.print()
    console.rule(f"[bold]{title}", align="left", style="blue")
    if explanation:
        console.print(f"[dim]{explanation}")


def typed(command: str) -> None:
    """Print the command that corresponds to the next step."""
    console.print(Text("$ ", style="green") + Text(command, style="bold"))


def output(text: str) -> None:
    """Print the output of a command with its colours."""
    console.print(Text.from_ansi(text.rstrip()))


def good(text: str) -> None:
    console.print(f"[green]✓[/] {text}")


def link(url: str) -> None:
    """Print the link at which the demo can be watched, on one line."""
    console.print("[dim]Watch it in the browser (the link signs in once):")
    console.print(Text(f"  {url}", style="bold cyan"), soft_wrap=True)


def record(title: str, values: Mapping[str, Any]) -> None:
    """Print the value of one key."""
    shown = "  ".join(f"[dim]{name}[/] [bold]{_shown(value)}[/]" for name, value in values.items())
    console.print(f"  {title}  {shown}")


def rows(title: str, names: Iterable[str], values: Iterable[Iterable[Any]]) -> None:
    console.print(title)
    table = Table(box=None, header_style="dim", padding=(0, 2))
    for name in names:
        table.add_column(name)
    for row in values:
        table.add_row(*(_shown(value) for value in row))
    console.print(table)


class EpochLog:
    """Prints each epoch of the watched applications once, when it is committed or aborted."""

    def __init__(self) -> None:
        self._watched: dict[str, ApplicationHandle] = {}
        self._seen: dict[str, int] = {}
        self._branches: dict[str, str] = {}

    def watch(self, application: ApplicationHandle) -> None:
        """Watch an application from the first epoch of its branch on."""
        self._watched[application.name] = application
        self._branches[application.name] = application.get().branch
        self._seen[application.name] = 0

    def until(self, done: Callable[[], bool], waiting_for: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Print epochs until ``done()``. Raises ``TooSlow``, or ``EpochalError`` if an application has failed."""
        deadline = time.monotonic() + seconds
        with console.status(f"[dim]{waiting_for}"):
            while not done():
                self.show()
                for application in self._watched.values():
                    state = application.get()
                    if state.state == "failed":
                        reason = state.failure.message if state.failure else state.detail
                        raise EpochalError(f"Application {state.name} failed: {reason}")
                if time.monotonic() > deadline:
                    raise TooSlow(f"After {seconds:.0f} s the demo still waits: {waiting_for}")
                time.sleep(0.2)
            self.show()

    def show(self) -> None:
        for name, application in self._watched.items():
            own = [epoch for epoch in application.epochs.list(limit=30) if epoch.branch == self._branches[name]]
            new = [epoch for epoch in own if epoch.epoch > self._seen[name]]
            for epoch in sorted(new, key=lambda epoch: epoch.epoch):
                if epoch.state not in ("committed", "aborted"):
                    break
                self._seen[name] = epoch.epoch
                console.print(_line(name, epoch), no_wrap=True, overflow="ellipsis")


def _line(name: str, epoch: Epoch) -> str:
    colour = COLOURS.get(name, "white")
    start = f"  [{colour}]{name:<8}[/] epoch [bold]{epoch.epoch:>3}[/]"
    if epoch.state == "aborted":
        reason = epoch.failure.message if epoch.failure else "no reason given"
        return f"{start}  [yellow]aborted[/], its slice is processed again  [dim]{reason.splitlines()[0]}[/]"
    took = (epoch.prepared_at - epoch.started_at).total_seconds() if epoch.prepared_at else 0.0
    return (
        f"{start}  [green]committed[/]  {epoch.rows_in or 0:>6,} flights in  {epoch.state_rows or 0:>6,} keys changed  "
        f"{epoch.rows_out or 0:>6,} rows out  [dim]{took * 1000:>6,.0f} ms  attempt {epoch.attempt}[/]"
    )


def _shown(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
