from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response, status
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from epochal.errors import IncompatibleState, NameTaken, QuotaExceeded, SnapshotExpired, StorageFull
from epochal.service.api.access import repeatable, requires
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.api.openapi import BINARY_BODY, BUILDING, SNAPSHOT, answers
from epochal.service.api.parameters import Paging
from epochal.service.api.project_paths import InProject
from epochal.service.catalog.sink_targets import SharedTargets
from epochal.service.commands.bundles.mapping import MappingNeeded
from epochal.service.commands.bundles.uploads import BundleTooLarge
from epochal.snapshots.bundle_format import BundleError
from epochal.wire.bodies import Page
from epochal.wire.bundles import CreateExport, CreateImport, ImportApplication, ImportPlan, UploadAnswer
from epochal.wire.operations import OperationAnswer
from epochal.wire.tokens import Role

MEDIA_TYPE = "application/vnd.epochal.bundle"

export_router = APIRouter(prefix="/v1/applications/{name}", tags=["exports"])
import_router = APIRouter(prefix="/v1/imports", tags=["imports"])


@export_router.post("/export", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT)
def export_application(name: str, request: CreateExport, control: Control, caller: Caller) -> OperationAnswer:
    """Build a bundle of a snapshot. The operation's result says its size and sha256, and how long it can be fetched."""
    return control.exports.export(name, request, caller.name)


@export_router.get("/exports/{id}", response_class=StreamingResponse)
@requires(Role.OPERATOR)
@answers(SnapshotExpired)
def fetch_export(name: str, id: str, request: Request, control: Control) -> Response:
    """The bundle of an export operation; `Range` is taken, so that a download can be gone on with. It holds all of the
    state, the code and the parameters: so it needs more than the role viewer."""
    found = control.exports.file(name, id)
    headers = {
        "etag": f'"{found.sha256}"',
        "cache-control": "no-store",
        "content-disposition": f'attachment; filename="{found.filename}"',
    }
    return ranged(request, found.parts.read, found.parts.bytes, MEDIA_TYPE, headers)


@import_router.post("", status_code=status.HTTP_201_CREATED)
@requires(Role.AUTHOR)
@repeatable
@answers(BundleTooLarge, StorageFull)
def create_import(request: CreateImport, control: Control, caller: Caller, project: InProject) -> UploadAnswer:
    """Announce a bundle. Announced again by the same token, an upload that was begun is gone on with."""
    return control.imports.create(request, project, caller.name)


@import_router.get("")
@requires(Role.AUTHOR)
def list_imports(page: Paging, control: Control, project: InProject) -> Page[UploadAnswer]:
    """Uploads, oldest first; those that were imported are gone."""
    return control.imports.page(page, project)


@import_router.get("/{id}")
@requires(Role.AUTHOR)
def get_import(id: str, control: Control, project: InProject) -> UploadAnswer:
    return control.imports.get(id, project)


@import_router.put("/{id}/content", openapi_extra=BINARY_BODY)
@requires(Role.AUTHOR)
@repeatable
@answers(BundleTooLarge, BundleError, StorageFull)
async def upload_import(
    id: str, offset: Annotated[int, Query(ge=0)], request: Request, control: Control, project: InProject
) -> UploadAnswer:
    """The next part of a bundle, which goes to `offset`: where the last one ended."""
    return await run_in_threadpool(control.imports.append, id, project, offset, await request.body())


@import_router.delete("/{id}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.AUTHOR)
@repeatable
def delete_import(id: str, control: Control, project: InProject) -> None:
    """Throw an upload away."""
    control.imports.remove(id, project)


@import_router.post("/{id}/application", status_code=status.HTTP_202_ACCEPTED, responses={200: {"model": ImportPlan}})
@requires(Role.AUTHOR)
@answers(*BUILDING, NameTaken, BundleError, MappingNeeded, SharedTargets, IncompatibleState, StorageFull, QuotaExceeded)
def import_application(
    id: str, request: ImportApplication, response: Response, control: Control, caller: Caller, project: InProject
) -> OperationAnswer | ImportPlan:
    """Make an application of an uploaded bundle. What has to be mapped first is answered as `mapping-needed`. Where
    branches of the bundle are another project's, they get names of this one.

    It is code execution, as submitting an artifact is: import only bundles of people whom you trust.
    """
    if request.dry_run:
        response.status_code = status.HTTP_200_OK
        return control.imports.plan(id, project, request)
    return control.imports.make(id, project, request, caller.name)


Read = Callable[[int, int], Iterator[bytes]]
"""The bytes from the first number to before the second."""

_ONE_RANGE = re.compile(r"bytes=(?:(\d{1,19})-(\d{1,19})?|-(\d{1,19}))")


def ranged(request: Request, read: Read, size: int, media_type: str, headers: Mapping[str, str]) -> Response:
    """All of it, or the one range that the request asks for: of several, and of other units, all of it is answered.

    ``headers`` has the ``etag``, which a request's ``If-Range`` has to have for its range to count.
    """
    common = {**headers, "accept-ranges": "bytes"}
    found = _ONE_RANGE.fullmatch(request.headers.get("range", "").strip())
    if found is None or request.headers.get("if-range", headers["etag"]) != headers["etag"]:
        common["content-length"] = str(size)
        return StreamingResponse(read(0, size), media_type=media_type, headers=common)
    first, last, ending = (None if text is None else int(text) for text in found.groups())
    if first is None:
        first, last = max(size - (ending or 0), 0), None
    last = size - 1 if last is None else min(last, size - 1)
    if first > last:
        return Response(status_code=416, headers={**common, "content-range": f"bytes */{size}"})
    common |= {"content-length": str(last + 1 - first), "content-range": f"bytes {first}-{last}/{size}"}
    return StreamingResponse(read(first, last + 1), status_code=206, media_type=media_type, headers=common)
