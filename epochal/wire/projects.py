"""Projects, their quotas, and full names.

The full name of the application ``orders`` in the project ``pricing`` is ``pricing.orders``, like ``schema.table`` in
SQL. The catalog, branch ids, labels, folders and logs use full names. Names contain no dot, so full names are
unambiguous. In ``default`` the full name equals the name.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from epochal.errors import InvalidInput
from epochal.wire.bodies import Answer, Body

DEFAULT_PROJECT = "default"
"""The default project. Its administrators administrate the installation and every project."""
OF_PROJECTS = frozenset(
    {
        "applications",
        "artifacts",
        "imports",
        "preflight",
        "operations",
        "events",
        "lags",
        "lineage",
        "webhooks",
        "tokens",
        "audit",
    }
)
"""Resources of projects, by the path segment after ``/v1/``. All others belong to the installation."""
LONGEST_PROJECT = 20
LONGEST_FULL_NAME = 62
"""Maximum length of a new full name, limited by Kubernetes labels and ids."""

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
"""Full name in the paths of routes, after the project prefix has been resolved."""


def is_project(text: str) -> bool:
    """Return whether the text is a valid project name."""
    return re.fullmatch(_PROJECT, text) is not None


def is_full_name(text: str) -> bool:
    """Return whether the text is a valid full name."""
    match = _FULL.fullmatch(text)
    return match is not None and match["project"] != DEFAULT_PROJECT


def full_name(project: str, name: str) -> str:
    """Full name of ``name`` in ``project``."""
    return name if project == DEFAULT_PROJECT else f"{project}.{name}"


def new_name(project: str, name: str) -> str:
    """Full name of a new object. Raises ``InvalidInput`` if it is too long."""
    full = full_name(project, name)
    if project != DEFAULT_PROJECT and len(full) > LONGEST_FULL_NAME:
        raise InvalidInput(
            f"The name {name!r} is too long for the project {project!r}: {full!r} has {len(full)} characters; the "
            f"maximum is {LONGEST_FULL_NAME}. Choose a name of at most {LONGEST_FULL_NAME - len(project) - 1} "
            f"characters."
        )
    return full


def project_of(full: str) -> str:
    """Project of a full name."""
    project, dot, _ = full.partition(".")
    return project if dot else DEFAULT_PROJECT


def local_name(full: str) -> str:
    """Name within the project."""
    return full.rpartition(".")[2]


def application_path(full: str) -> str:
    """REST path of the application with this full name."""
    project, name = project_of(full), local_name(full)
    return f"{project_path(project)}/applications/{name}"


def path_in(project: str, path: str) -> str:
    """REST path within the project; paths of installation resources are returned unchanged."""
    beginning, version, resource, *_ = [*path.split("/"), "", ""]
    if project == DEFAULT_PROJECT or beginning or version != "v1" or resource not in OF_PROJECTS:
        return path
    return project_path(project) + path.removeprefix("/v1")


def project_path(project: str) -> str:
    """Prefix of the REST paths of a project."""
    return "/v1" if project == DEFAULT_PROJECT else f"/v1/projects/{project}"


Quota = Annotated[int, Field(ge=0, le=1_000_000)]


class Quotas(Body):
    """Quotas of a project; null means unlimited."""

    applications: Quota | None = Field(default=None, description="Applications that are not deleted.")
    running: Quota | None = Field(default=None, description="Executions that are not over.")
    subtasks: Quota | None = Field(default=None, description="The sum of the parallelism of these executions.")


class CreateProject(Body):
    name: ProjectName
    quotas: Quotas = Quotas()


class ChangeProject(Body):
    """New quotas, which replace all previous ones."""

    quotas: Quotas


class ProjectUse(Answer):
    """Current use of a project."""

    applications: int
    running: int
    subtasks: int


class ProjectAnswer(Answer):
    name: str
    quotas: Quotas
    use: ProjectUse
    created_at: datetime | None
    """Null for ``default`` until its quotas are set."""
    created_by: str | None
