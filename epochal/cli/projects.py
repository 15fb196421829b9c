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

app = typer.Typer(help="Projects: what belongs together, and how much of it there may be.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="PROJECT", help="The project's name.")]
Applications = Annotated[
    int | None, typer.Option("--applications", min=0, help="At most so many applications.  [default: any number]")
]
Running = Annotated[
    int | None, typer.Option("--running", min=0, help="At most so many of them at once.  [default: any number]")
]
Subtasks = Annotated[
    int | None,
    typer.Option("--subtasks", min=0, help="At most so many subtasks in what runs.  [default: any number]"),
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
    """Make a project (needs an admin of `default`)."""
    with connected(url, as_json) as session:
        project = session.client.projects.create(name, _quotas(applications, running, subtasks))
        session.output.result(project, Text(f"Project {name} is there: `epochal --project {name} ps`."))


@app.command("list")
def list_projects(url: Url = None, as_json: Json = False) -> None:
    """List those in which you have a role, and what each has of what it may have."""
    with connected(url, as_json) as session:
        projects = session.client.projects.list()
        table = Listing(
            Column("name", flexible=True), Column("applications"), Column("running"), Column("subtasks"), Column("made")
        )
        for project in projects:
            age = "" if project.created_at is None else formatting.age(project.created_at)
            table.add(Text(project.name, style="bold"), *_use(project).values(), age)
        session.output.result(projects, table)


@app.command()
def show(name: Name, url: Url = None, as_json: Json = False) -> None:
    """Show what a project has, and may have."""
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
    """Give a project other quotas, in place of all that it had (needs an admin of `default`)."""
    with connected(url, as_json) as session:
        project = session.client.projects.set(name, dict(_quotas(applications, running, subtasks)))
        has = ", ".join(f"{what} {used}" for what, used in _use(project).items())
        session.output.result(project, Text(f"Project {name}: {has}."))


@app.command()
def delete(name: Name, url: Url = None, as_json: Json = False) -> None:
    """Delete a project without applications, for good: its name is not given again (needs an admin of `default`)."""
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
