"""``/v1/artifacts``: code that authors upload."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response, status
from starlette.concurrency import run_in_threadpool

from epochal.errors import ArtifactError, EnvironmentProblem, StorageFull
from epochal.service.api.access import reads_only, repeatable, requires
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.api.openapi import BINARY_BODY, STORE, answers
from epochal.service.api.parameters import Paging
from epochal.service.api.project_paths import InProject
from epochal.wire.bodies import Page, Sha256
from epochal.wire.tokens import Role
from epochal.wire.versions import ArtifactAnswer, ArtifactSource

router = APIRouter(prefix="/v1/artifacts", tags=["artifacts"])

Filename = Annotated[
    str,
    Query(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$",
        description="`flights.py` or `flights.zip`.",
        examples=["flights.py"],
    ),
]

File = Annotated[str | None, Query(max_length=1000, description="Path of one file, exactly as in the list of all.")]


@router.post(
    "", status_code=status.HTTP_201_CREATED, responses={200: {"model": ArtifactAnswer}}, openapi_extra=BINARY_BODY
)
@requires(Role.AUTHOR)
@repeatable
@answers(ArtifactError, EnvironmentProblem, StorageFull, *STORE)
async def register_artifact(
    filename: Filename, request: Request, response: Response, control: Control, caller: Caller, project: InProject
) -> ArtifactAnswer:
    """Upload code: the body is the file itself. 200 if the same bytes were uploaded before. An artifact can be used
    only in its project. An artifact that no version uses within a week is deleted by the next collection."""
    content = await request.body()
    answer, new = await run_in_threadpool(control.artifacts.register, filename, content, project, caller.name)
    if not new:
        response.status_code = status.HTTP_200_OK
    return answer


@router.get("")
@requires(Role.VIEWER)
def list_artifacts(page: Paging, control: Control, project: InProject) -> Page[ArtifactAnswer]:
    """List artifacts, newest first."""
    return control.registered.artifacts(page, project)


@router.get("/{sha256}/source")
@requires(Role.OPERATOR)
@reads_only
@answers(ArtifactError, EnvironmentProblem, *STORE)
def get_source(sha256: str, control: Control, project: InProject, file: File = None) -> ArtifactSource:
    """Read the code as text: all files, or one. Code can contain more than the state shows, and therefore
    requires more than the role viewer, as a bundle does."""
    return control.sources.source(sha256, project, file)


@router.delete("/{sha256}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.AUTHOR)
@repeatable
def delete_artifact(sha256: Sha256, control: Control, project: InProject) -> None:
    """Delete an artifact and its file; 204 also if it does not exist. Refused with `conflict` while a version of an
    application uses it, including a deleted application; the message names the version."""
    control.artifacts.delete(sha256, project)


@router.get("/{sha256}")
@requires(Role.VIEWER)
def get_artifact(sha256: str, control: Control, project: InProject) -> ArtifactAnswer:
    return control.registered.artifact(sha256, project)
