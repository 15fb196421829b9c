"""``project create | list | show | set | delete``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import Json, Url
from epochal.cli.session import connected
from epochal.client.models import Project

app = typer.Typer(help="Manage projects and their quotas.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="PROJECT", help="The project's name.")]
Applications = Annotated[
    int | None, typer.Option("--applications", min=0, help="Maximum number of applications.  \\[default: unlimited]")
]
Running = Annotated[
    int | None, typer.Option("--running", min=0, help="Maximum number of running executions.  \\[default: unlimited]")
]
Subtasks = Annotated[
    int | None,
    typer.Option("--subtasks", min=0, help="Maximum total parallelism of running executions.  \\[default: unlimited]"),
]


@app.command()
def create(
    name: Name,
    applications: Applications = None,
    running: Running = None,
    subtasks: Subtasks = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Create a project (requires an admin of `default`)."""
    with connected(url, as_json) as session:
        project = session.client.projects.create(name, _quotas(applications, running, subtasks))
        session.output.result(
            project, Text(f"Project {name} is created. List its applications with `epochal --project {name} ps`.")
        )


@app.command("list")
def list_projects(url: Url = None, as_json: Json = False) -> None:
    """List the projects in which you have a role, with their use and quotas."""
    with connected(url, as_json) as session:
        projects = session.client.projects.list()
        table = Listing(
            Column("name", flexible=True),
            Column("applications"),
            Column("running"),
            Column("subtasks"),
            Column("created"),
        )
        for project in projects:
            age = "" if project.created_at is None else formatting.age(project.created_at)
            table.add(Text(project.name, style="bold"), *_use(project).values(), age)
        session.output.result(projects, table)


@app.command()
def show(name: Name, url: Url = None, as_json: Json = False) -> None:
    """Show the use and the quotas of a project."""
    with connected(url, as_json) as session:
        project = session.client.projects.get(name)
        lines = [f"{what} {used}" for what, used in _use(project).items()]
        session.output.result(project, Text("\n".join([name, *(f"  {line}" for line in lines)])))


@app.command("set")
def set_quotas(
    name: Name,
    applications: Applications = None,
    running: Running = None,
    subtasks: Subtasks = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Replace all quotas of a project (requires an admin of `default`)."""
    with connected(url, as_json) as session:
        project = session.client.projects.set(name, dict(_quotas(applications, running, subtasks)))
        has = ", ".join(f"{what} {used}" for what, used in _use(project).items())
        session.output.result(project, Text(f"Project {name}: {has}."))


@app.command()
def delete(name: Name, url: Url = None, as_json: Json = False) -> None:
    """Delete a project without applications permanently; its name cannot be used again (requires an admin of
    `default`)."""
    with connected(url, as_json) as session:
        session.client.projects.delete(name)
        session.output.result({"deleted": name}, Text(f"Project {name} is deleted."))


def _quotas(applications: int | None, running: int | None, subtasks: int | None) -> dict[str, int]:
    named = {"applications": applications, "running": running, "subtasks": subtasks}
    return {name: value for name, value in named.items() if value is not None}


def _use(project: Project) -> dict[str, str]:
    """``3 of 10``."""
    quotas = project.quotas.model_dump()
    return {
        name: f"{used}" if quotas[name] is None else f"{used} of {quotas[name]}"
        for name, used in project.use.model_dump().items()
    }
