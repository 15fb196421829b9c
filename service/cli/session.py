"""A command's connection to the control plane, and its waiting for long work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.markup import escape

from epochal.client import Application, Client, Operation
from epochal.service.cli.output import Output


@dataclass(frozen=True)
class Session:
    """``client`` to ask, ``output`` to answer."""

    client: Client
    output: Output

    def wait(self, operation: Operation, doing: str) -> Operation:
        """Wait for the operation's success, with a spinner where a person looks. Raises what it failed with."""
        if not self.output.animated:
            return self.client.operations.wait(operation)
        with self.output.notes.status(f"{doing} ..") as status:
            return self.client.operations.wait(
                operation, lambda now: status.update(f"{doing} .. [dim]{escape(now.progress or '')}[/dim]")
            )

    def wait_until_running(self, name: str) -> Application:
        """Wait until the application runs, with a spinner where a person looks. Raises what it failed with."""
        if not self.output.animated:
            return self.client.applications.wait_until_running(name)
        with self.output.notes.status(f"Starting {name} ..") as status:
            return self.client.applications.wait_until_running(
                name, lambda now: status.update(f"Starting {name} .. [dim]{escape(now.detail or '')}[/dim]")
            )


@contextmanager
def connected(url: str | None, as_json: bool) -> Iterator[Session]:
    with Client(url) as client:
        yield Session(client, Output.make(as_json))
