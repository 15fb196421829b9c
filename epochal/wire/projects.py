"""Projects: what belongs together, and who may do what there; and the full names of what belongs to them.

An application ``orders`` of the project ``pricing`` is called ``pricing.orders`` wherever projects meet, as
``schema.table`` in SQL: in the catalog, in ids of branches, in labels, folders and logs. Names have no dot, so it says
one thing only. In ``default`` the full name is the name.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from epochal.errors import InvalidInput
from epochal.wire.bodies import Answer, Body

DEFAULT_PROJECT = "default"
"""What is not said to belong to another project belongs to this one. Its administrators are those of the whole
installation, and of every project."""
OF_PROJECTS = frozenset(
    {"applications", "artifacts", "imports", "preflight", "operations", "events", "webhooks", "tokens", "audit"}
)
"""The resources that belong to projects: what follows ``/v1/`` in their paths. All others are the installation's."""
LONGEST_PROJECT = 20
LONGEST_FULL_NAME = 62
"""Of what is made: it stands in labels of Kubernetes and in ids, which bound it."""

_LABEL = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_PROJECT = rf"[a-z](?:[-a-z0-9]{{0,{LONGEST_PROJECT - 2}}}[a-z0-9])?"
_FULL = re.compile(rf"(?:(?P<project>{_PROJECT})\.)?(?P<name>{_LABEL})")

ProjectName = Annotated[
    str,
    StringConstraints(pattern=rf"^{_PROJECT}$"),
    Field(
        description=f"A DNS label: lower-case letters, digits and hyphens, at most {LONGEST_PROJECT}.",
        examples=["pricing"],
    ),
]
FullName = Annotated[
    str,
    StringConstraints(pattern=rf"^(?:{_PROJECT}\.)?{_LABEL}$"),
    Field(description="The name of an application: a DNS label.", examples=["flights"]),
]
"""In paths: what was named by a project's path is called by its full name from there on."""


def is_project(text: str) -> bool:
    """Whether a project can be called so."""
    return re.fullmatch(_PROJECT, text) is not None


def is_full_name(text: str) -> bool:
    """Whether something of a project can be called so."""
    match = _FULL.fullmatch(text)
    return match is not None and match["project"] != DEFAULT_PROJECT


def full_name(project: str, name: str) -> str:
    """What ``name`` of ``project`` is called wherever projects meet."""
    return name if project == DEFAULT_PROJECT else f"{project}.{name}"


def new_name(project: str, name: str) -> str:
    """As :func:`full_name`, of something that is about to be made. Raises ``InvalidInput`` when that is too long."""
    full = full_name(project, name)
    if project != DEFAULT_PROJECT and len(full) > LONGEST_FULL_NAME:
        raise InvalidInput(
            f"The name {name!r} is too long for the project {project!r}: {full!r} has {len(full)} characters, and may "
            f"have {LONGEST_FULL_NAME}. Choose a name of at most {LONGEST_FULL_NAME - len(project) - 1}."
        )
    return full


def project_of(full: str) -> str:
    """The project of what has this full name."""
    project, dot, _ = full.partition(".")
    return project if dot else DEFAULT_PROJECT


def local_name(full: str) -> str:
    """What it is called within its project."""
    return full.rpartition(".")[2]


def application_path(full: str) -> str:
    """Where the application with this full name is, of a control plane."""
    project, name = project_of(full), local_name(full)
    return f"{project_path(project)}/applications/{name}"


def path_in(project: str, path: str) -> str:
    """``path``, of what belongs to projects, in this one; any other path as it is."""
    beginning, version, resource, *_ = [*path.split("/"), "", ""]
    if project == DEFAULT_PROJECT or beginning or version != "v1" or resource not in OF_PROJECTS:
        return path
    return project_path(project) + path.removeprefix("/v1")


def project_path(project: str) -> str:
    """Where what belongs to the project is."""
    return "/v1" if project == DEFAULT_PROJECT else f"/v1/projects/{project}"


Quota = Annotated[int, Field(ge=0, le=1_000_000)]


class Quotas(Body):
    """How much a project may have at once; null: as much as it likes."""

    applications: Quota | None = Field(default=None, description="Applications that are not deleted.")
    running: Quota | None = Field(default=None, description="Executions that are not over.")
    subtasks: Quota | None = Field(default=None, description="The sum of the parallelism of these executions.")


class CreateProject(Body):
    name: ProjectName
    quotas: Quotas = Quotas()


class ChangeProject(Body):
    """What takes the place of what was said before."""

    quotas: Quotas


class ProjectUse(Answer):
    """What a project has of what quotas bound."""

    applications: int
    running: int
    subtasks: int


class ProjectAnswer(Answer):
    name: str
    quotas: Quotas
    use: ProjectUse
    created_at: datetime | None
    """Null of ``default`` until it is given quotas: it was there from the beginning."""
    created_by: str | None
