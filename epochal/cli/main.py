"""The command ``epochal``: registration of all commands, and the mapping of errors to messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from epochal import __version__
from epochal.cli import (
    activity,
    administration,
    applications,
    apply,
    backup,
    bundles,
    calls,
    config,
    console,
    doctor,
    epochs,
    lifecycle,
    lineage,
    login,
    migrate,
    operations,
    projects,
    rollback,
    run,
    sdg,
    sinks,
    snapshots,
    standing_queries,
    state,
    store,
    submit,
    transactions,
    up,
    versions,
    webhooks,
)
from epochal.cli.failures import ExitCode, exit_code, of_the_system, sentence, unexpected
from epochal.cli.output import encode
from epochal.cli.session import chosen_project
from epochal.errors import EpochalError

HELP = (
    "Epochs, queryable state and exactly-once sinks for Apache Spark.\n\n"
    "`epochal up` starts a control plane; `epochal submit FILE --name NAME` runs a pipeline on it; "
    "`epochal run FILE` runs a pipeline without a control plane."
)
EPILOG = (
    "[bold]Exit codes:[/bold] 0 done · 1 failed · 2 wrong usage · 3 not found · 4 conflict · 5 control plane "
    "unavailable · 6 not allowed · 130 interrupted. docs/reference/command-line.md lists the code of each "
    "error.\n\n[bold]Environment:[/bold] EPOCHAL_URL and EPOCHAL_TOKEN (control plane and access token), "
    "EPOCHAL_PROJECT (project), EPOCHAL_HOME (data directory of a local control plane, with its admin.token), "
    "EPOCHAL_DEBUG=1 (tracebacks), NO_COLOR."
)

app = typer.Typer(
    name="epochal",
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (
    up,
    run,
    submit,
    apply,
    applications,
    versions,
    rollback,
    bundles,
    state,
    calls,
    epochs,
    activity,
    lifecycle,
    lineage,
    snapshots,
    store,
    administration,
    migrate,
    doctor,
    console,
    login,
):
    app.add_typer(group.app)
app.add_typer(submit.artifacts_app, name="artifacts")
app.add_typer(backup.app, name="backup")
app.add_typer(config.app, name="config")
app.add_typer(login.context_app, name="context")
app.add_typer(operations.app, name="operations")
app.add_typer(projects.app, name="project")
app.add_typer(snapshots.savepoints_app, name="savepoint")
app.add_typer(sdg.app, name="sdg")
app.add_typer(store.store_app, name="store")
app.add_typer(administration.tokens_app, name="tokens")
app.add_typer(administration.sessions_app, name="sessions")
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(standing_queries.app, name="query")
app.add_typer(transactions.app, name="transaction")
app.add_typer(sinks.app, name="sink")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"epochal {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            metavar="PROJECT",
            help="Project of the applications.  \\[default: EPOCHAL_PROJECT, the context's project, or default]",
        ),
    ] = None,
) -> None:
    chosen_project.set(project)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its :class:`ExitCode`. Errors are printed as one sentence on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # unsupported characters become question marks
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(words, prog_name="epochal")
    except EpochalError as error:
        if _debugging():
            raise
        _fail(sentence(error), error.slug, exit_code(error), as_json="--json" in words)
    except Exception as error:
        if _debugging():
            raise
        if isinstance(error, OSError) and (known := of_the_system(error)) is not None:
            _fail(sentence(known), known.slug, exit_code(known), as_json="--json" in words)
        _fail(unexpected(error), EpochalError.slug, ExitCode.FAILED, as_json="--json" in words)


def _fail(text: str, slug: str, code: ExitCode, *, as_json: bool) -> None:
    """Print an error. With --json it is also written to standard output as the command's document."""
    if as_json:
        sys.stdout.write(encode({"error": {"type": slug, "message": text}}) + "\n")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("error: ", "bold red"), text))
    raise SystemExit(int(code))


def _debugging() -> bool:
    return os.environ.get("EPOCHAL_DEBUG", "") not in ("", "0")


if __name__ == "__main__":
    main()
