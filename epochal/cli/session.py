"""A command's connection to the control plane, and its waiting for long work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from epochal.cli.output import Output
from epochal.client import Application, Client, Operation
from epochal.errors import Conflict


@dataclass(frozen=True)
class Session:
    """``client`` to ask, ``output`` to answer."""

    client: Client
    output: Output

    def wait(self, operation: Operation, doing: str) -> Operation:
        """Wait for the operation's success, and show so. Raises what it failed with."""
        with self.output.busy(doing) as progress:
            return self.client.operations.wait(operation, lambda now: progress(now.progress or ""))

    def wait_until_running(self, name: str) -> Application:
        """Wait until the application runs, and show so. Raises what it failed with."""
        with self._seen(f"Starting {name}") as progress:
            return self.client.applications.wait(name, on_progress=progress)

    def wait_until_taken(self, name: str) -> Application:
        """Wait until the application has taken what was available, and show so.

        Raises what it failed with, ``Conflict`` when somebody stopped it before.
        """
        with self._seen(f"Running {name}") as progress:
            application = self.client.applications.wait(name, "ended", on_progress=progress)
        execution = self.client.application(name).executions.get(str(application.execution))
        if execution.stop_requested_at is not None:
            raise Conflict(
                f"Application {name} was stopped before all that was available was taken; "
                f"`epochal start {name} --available-now` goes on."
            )
        return application

    @contextmanager
    def _seen(self, doing: str) -> Iterator[Callable[[Application], None]]:
        with self.output.busy(doing) as progress:
            yield lambda now: progress(_progress(now))


def _progress(application: Application) -> str:
    epoch = None if application.head is None else f"epoch {application.head.epoch}"
    return " · ".join(part for part in (application.state, epoch, application.detail) if part)


chosen_project: ContextVar[str | None] = ContextVar("chosen_project", default=None)
"""What ``epochal --project`` says, before the command."""


@contextmanager
def connected(url: str | None, as_json: bool, project: str | None = None) -> Iterator[Session]:
    """``project``: the one that is meant, where it is not what ``epochal --project`` says."""
    output = Output.make(as_json)
    with Client(url, project=project or chosen_project.get(), waiting=output.answered) as client:
        yield Session(client, output)
