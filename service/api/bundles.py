"""``/v1/applications/{name}/exports`` and ``/v1/imports``: bundles of snapshots."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response, status
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from epochal.errors import IncompatibleState, NameTaken, QuotaExceeded, SnapshotExpired, StorageFull
from epochal.service.api.access import repeatable, requires
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.api.openapi import BINARY_BODY, BUILDING, SNAPSHOT, STORE, answers
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
    """Build a bundle of a snapshot. The operation's result has its size, its sha256 and its expiry."""
    return control.exports.export(name, request, caller.name)


@export_router.get("/exports/{id}", response_class=StreamingResponse)
@requires(Role.OPERATOR)
@answers(SnapshotExpired, *STORE)
def fetch_export(name: str, id: str, request: Request, control: Control) -> Response:
    """Download the bundle of an export operation. `Range` is supported, so that a download can be resumed. A bundle
    contains all state, code and parameters, and therefore requires more than the role viewer."""
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
@answers(BundleTooLarge, StorageFull, *STORE)
def create_import(request: CreateImport, control: Control, caller: Caller, project: InProject) -> UploadAnswer:
    """Begin the upload of a bundle. If the same token has begun this upload before, the upload is resumed."""
    return control.imports.create(request, project, caller.name)


@import_router.get("")
@requires(Role.AUTHOR)
def list_imports(page: Paging, control: Control, project: InProject) -> Page[UploadAnswer]:
    """List unfinished uploads, oldest first. Imported bundles are not listed."""
    return control.imports.page(page, project)


@import_router.get("/{id}")
@requires(Role.AUTHOR)
def get_import(id: str, control: Control, project: InProject) -> UploadAnswer:
    return control.imports.get(id, project)


@import_router.put("/{id}/content", openapi_extra=BINARY_BODY)
@requires(Role.AUTHOR)
@repeatable
@answers(BundleTooLarge, BundleError, StorageFull, *STORE)
async def upload_import(
    id: str, offset: Annotated[int, Query(ge=0)], request: Request, control: Control, project: InProject
) -> UploadAnswer:
    """Upload the next part of a bundle. `offset` must be the end of the previous part."""
    return await run_in_threadpool(control.imports.append, id, project, offset, await request.body())


@import_router.delete("/{id}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.AUTHOR)
@repeatable
def delete_import(id: str, control: Control, project: InProject) -> None:
    """Delete an upload."""
    control.imports.remove(id, project)


@import_router.post("/{id}/application", status_code=status.HTTP_202_ACCEPTED, responses={200: {"model": ImportPlan}})
@requires(Role.AUTHOR)
@answers(*BUILDING, NameTaken, BundleError, MappingNeeded, SharedTargets, IncompatibleState, StorageFull, QuotaExceeded)
def import_application(
    id: str, request: ImportApplication, response: Response, control: Control, caller: Caller, project: InProject
) -> OperationAnswer | ImportPlan:
    """Create an application from an uploaded bundle. If something must be mapped first, the answer is `mapping-needed`.
    Branches of the bundle that belong to another project get names of this project.

    An import executes code, like submitting an artifact: import only bundles from trusted sources.
    """
    if request.dry_run:
        response.status_code = status.HTTP_200_OK
        return control.imports.plan(id, project, request)
    return control.imports.make(id, project, request, caller.name)


Read = Callable[[int, int], Iterator[bytes]]
"""Reads the bytes from the first offset up to, not including, the second."""

_ONE_RANGE = re.compile(r"bytes=(?:(\d{1,19})-(\d{1,19})?|-(\d{1,19}))")


def ranged(request: Request, read: Read, size: int, media_type: str, headers: Mapping[str, str]) -> Response:
    """Answer with the one range that the request names (RFC 9110, section 14), or with everything. Requests for several
    ranges, or in other units, get everything.

    ``headers`` contains the ``etag``; a request's ``If-Range`` must match it for the range to apply.
    """
    common = {**headers, "accept-ranges": "bytes"}
    found = _ONE_RANGE.fullmatch(request.headers.get("range", "").strip())
    if found is None or request.headers.get("if-range", headers["etag"]) != headers["etag"]:
        common["content-length"] = str(size)
        return StreamingResponse(_begun(read(0, size)), media_type=media_type, headers=common)
    first, last, ending = (None if text is None else int(text) for text in found.groups())
    if first is None:
        first, last = max(size - (ending or 0), 0), None
    last = size - 1 if last is None else min(last, size - 1)
    if first > last:
        return Response(status_code=416, headers={**common, "content-range": f"bytes */{size}"})
    common |= {"content-length": str(last + 1 - first), "content-range": f"bytes {first}-{last}/{size}"}
    return StreamingResponse(_begun(read(first, last + 1)), status_code=206, media_type=media_type, headers=common)


def _begun(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces, the first of which is read now, so that its errors are answered as problems."""
    first = next(pieces, b"")
    return chain([first], pieces)
