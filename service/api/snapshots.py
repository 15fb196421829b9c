"""Snapshots of an application: manifests, differences, savepoints, pins, tags, messages, lineage."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, status
from starlette.responses import Response

from epochal.errors import InvalidInput, NameTaken, NotFound, NotYetCommitted
from epochal.service.api.access import requires
from epochal.service.api.context import Control, Node, query_node
from epochal.service.api.gate import Caller
from epochal.service.api.openapi import FILES, SNAPSHOT, answers
from epochal.service.api.parameters import Named, Paging
from epochal.service.api.project_paths import InProject
from epochal.service.catalog.lineage import EpochSpan
from epochal.service.queries.diffs import DiffService
from epochal.service.queries.lineage.drawings import as_dot, as_svg
from epochal.service.queries.lineage.service import LineageOptions
from epochal.wire.bodies import EpochNumber, Name, Page
from epochal.wire.history import DiffRows, SnapshotDiff
from epochal.wire.lineage import MOST_TOGETHER, LineageAnswer, LineagesAnswer
from epochal.wire.operations import OperationAnswer
from epochal.wire.projects import FullName, full_name
from epochal.wire.snapshots import (
    LONGEST_NAME,
    CreatePin,
    CreateSavepoint,
    CreateTag,
    EpochPage,
    KeyGroupSizes,
    SavepointAnswer,
    SnapshotAnswer,
    SnapshotMessageAnswer,
    SnapshotPinAnswer,
    SnapshotTagAnswer,
    WriteMessage,
)
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/snapshots", tags=["snapshots"])
savepoint_router = APIRouter(prefix="/v1/applications/{name}/savepoints", tags=["savepoints"])
annotation_router = APIRouter(prefix="/v1/applications/{name}", tags=["annotations"])
lineages_router = APIRouter(prefix="/v1/lineage", tags=["lineage"])
lineage_router = APIRouter(prefix="/v1/applications/{name}/lineage", tags=["lineage"])


@router.get("")
@requires(Role.VIEWER)
def list_snapshots(name: str, page: Paging, node: Node) -> EpochPage:
    """List the prepared and committed epochs of the lineage, newest first; `folded` has the ranges of folded epochs."""
    return node.manifests.page(name, page)


@router.get("/{snapshot}")
@requires(Role.VIEWER)
@answers(*SNAPSHOT, *FILES)
def get_snapshot(name: str, snapshot: Named, node: Node) -> SnapshotAnswer:
    """Return the manifest: what the epoch read, changed and wrote, and its files."""
    return node.manifests.get(name, snapshot)


def _diffs(request: Request) -> DiffService:
    node = query_node(request)
    return DiffService(node.database, node.snapshots, node.store)


Comparing = Annotated[DiffService, Depends(_diffs)]
To = Annotated[
    str,
    Query(
        max_length=LONGEST_NAME,
        description="An epoch, a savepoint, a tag, or `head`; `NAME:EPOCH` for another application of the lineage.",
        examples=["14", "again:9", "head"],
    ),
]


@router.get("/{snapshot}/diff", summary="Compare two snapshots")
@requires(Role.VIEWER)
@answers(*SNAPSHOT, *FILES, NotYetCommitted)
def diff(name: FullName, snapshot: Named, to: To, diffs: Comparing) -> SnapshotDiff:
    """Differences in code, parameters, input between the snapshots, and number of changed keys of each state table;
    also across forks and rollbacks."""
    return diffs.summary(name, snapshot, to)


@router.get("/{snapshot}/diff/{table}", summary="Changed rows of a state table")
@requires(Role.VIEWER)
@answers(*SNAPSHOT, *FILES, NotYetCommitted)
def diff_rows(name: FullName, snapshot: Named, table: str, to: To, diffs: Comparing, page: Paging) -> DiffRows:
    """Changed rows in key order, with the values in both snapshots."""
    return diffs.rows(name, snapshot, to, table, page)


@router.get("/{snapshot}/key-groups/{table}", summary="Rows and bytes by key group of a state table")
@requires(Role.VIEWER)
@answers(*SNAPSHOT, *FILES)
def get_key_groups(name: FullName, snapshot: Named, table: str, node: Node) -> KeyGroupSizes:
    """Sizes in the table's files, from their footers, and from the column of key groups where a row group has several:
    no rows are read. The cost is one or two requests to the store for each file, of which at most 2,000 are counted;
    footers are cached."""
    return node.manifests.key_groups(name, snapshot, table)


@savepoint_router.post("", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(NameTaken)
def create_savepoint(name: str, request: CreateSavepoint, control: Control, caller: Caller) -> OperationAnswer:
    """Create a savepoint at the next epoch boundary; of the last committed epoch if the application is not running."""
    return control.savepoints.create(name, request, caller.name)


@savepoint_router.get("")
@requires(Role.VIEWER)
def list_savepoints(name: str, page: Paging, node: Node) -> Page[SavepointAnswer]:
    """List savepoints by name."""
    return node.registered.savepoints(name, page)


@savepoint_router.get("/{savepoint}")
@requires(Role.VIEWER)
def get_savepoint(name: str, savepoint: str, node: Node) -> SavepointAnswer:
    return node.registered.savepoint(name, savepoint)


@savepoint_router.delete("/{savepoint}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.OPERATOR)
def delete_savepoint(name: str, savepoint: str, control: Control) -> None:
    """Delete a savepoint. Forks of it keep the files that they need."""
    control.savepoints.delete(name, savepoint)


@annotation_router.get("/pins")
@requires(Role.VIEWER)
@answers(*SNAPSHOT)
def list_pins(name: str, page: Paging, node: Node) -> Page[SnapshotPinAnswer]:
    """List pins by branch and epoch."""
    return node.registered.pins(name, page)


@annotation_router.get("/tags")
@requires(Role.VIEWER)
@answers(*SNAPSHOT)
def list_tags(name: str, page: Paging, node: Node) -> Page[SnapshotTagAnswer]:
    """List tags by name."""
    return node.registered.tags(name, page)


@annotation_router.post("/snapshots/{epoch}/pin", status_code=status.HTTP_201_CREATED)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT, NameTaken)
def pin_snapshot(
    name: str, epoch: EpochNumber, request: CreatePin, control: Control, caller: Caller
) -> SnapshotPinAnswer:
    """Keep the snapshot until it is unpinned."""
    return control.annotations.pin(name, epoch, request, caller.name)


@annotation_router.get("/snapshots/{epoch}/pin")
@requires(Role.VIEWER)
@answers(*SNAPSHOT)
def get_pin(name: str, epoch: EpochNumber, node: Node) -> SnapshotPinAnswer:
    """Author, time and reason of the pin."""
    return node.registered.pin(name, epoch)


@annotation_router.delete("/snapshots/{epoch}/pin", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT)
def unpin_snapshot(name: str, epoch: EpochNumber, control: Control) -> None:
    """Remove the pin. The snapshot then expires like others of its age."""
    control.annotations.unpin(name, epoch)


@annotation_router.post("/snapshots/{epoch}/tags", status_code=status.HTTP_201_CREATED)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT, NameTaken)
def tag_snapshot(
    name: str, epoch: EpochNumber, request: CreateTag, control: Control, caller: Caller
) -> SnapshotTagAnswer:
    """Attach a tag, a name for the snapshot. Tags do not prevent expiry."""
    return control.annotations.tag(name, epoch, request, caller.name)


@annotation_router.get("/snapshots/{epoch}/tags")
@requires(Role.VIEWER)
@answers(*SNAPSHOT)
def get_tags(name: str, epoch: EpochNumber, node: Node) -> Page[SnapshotTagAnswer]:
    """List the snapshot's tags by name, all in one page."""
    return node.registered.tags_of(name, epoch)


@annotation_router.delete("/snapshots/{epoch}/tags/{tag}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT)
def untag_snapshot(name: str, epoch: EpochNumber, tag: str, control: Control) -> None:
    control.annotations.untag(name, epoch, tag)


@annotation_router.post("/snapshots/{epoch}/message", status_code=status.HTTP_201_CREATED)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT, NameTaken)
def write_message(
    name: str, epoch: EpochNumber, request: WriteMessage, control: Control, caller: Caller
) -> SnapshotMessageAnswer:
    """Set the message of the snapshot; replaces the previous message."""
    return control.annotations.write(name, epoch, request, caller.name)


@annotation_router.get("/snapshots/{epoch}/message")
@requires(Role.VIEWER)
@answers(*SNAPSHOT)
def get_message(name: str, epoch: EpochNumber, node: Node) -> SnapshotMessageAnswer:
    return node.registered.message(name, epoch)


@annotation_router.delete("/snapshots/{epoch}/message", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT)
def erase_message(name: str, epoch: EpochNumber, control: Control) -> None:
    control.annotations.erase(name, epoch)


@lineages_router.get("")
@requires(Role.VIEWER)
@answers(NotFound)
def get_lineages(
    page: Paging,
    node: Node,
    project: InProject,
    applications: Annotated[
        list[Name],
        Query(
            alias="application",
            min_length=1,
            max_length=MOST_TOGETHER,
            description="An application. Repeatable.",
        ),
    ],
) -> LineagesAnswer:
    """Snapshots of the trees of several applications of the project, newest first, and the origin of each. Runs of
    epochs without annotations are folded; edges have no input."""
    return node.lineage.together([full_name(project, name) for name in applications], page)


_DRAWN: dict[str, Any] = {"content": {"application/json": {}, "text/vnd.graphviz": {}, "image/svg+xml": {}}}


@lineage_router.get("", response_model=LineageAnswer, responses={200: _DRAWN})
@requires(Role.VIEWER)
@answers(*FILES, InvalidInput)
def get_lineage(
    name: str,
    page: Paging,
    node: Node,
    format: Annotated[
        Literal["json", "dot", "svg"], Query(description="dot and svg draw the page, always folded.")
    ] = "json",
    fold: Annotated[bool, Query(description="Show a run of epochs without annotations as one node.")] = False,
    slices: Annotated[bool, Query(description="Add the input read between two nodes to each edge.")] = True,
    branch: Annotated[
        str | None, Query(max_length=LONGEST_NAME, description="Only epochs of this branch of the tree, never folded.")
    ] = None,
    first: Annotated[EpochNumber | None, Query(description="With `branch`: from this epoch on.")] = None,
    last: Annotated[EpochNumber | None, Query(description="With `branch`: up to this epoch.")] = None,
) -> LineageAnswer | Response:
    """Snapshots of the whole tree of the application, newest first, and the origin of each."""
    if branch is None and (first is not None or last is not None):
        raise InvalidInput("`first` and `last` select epochs of a branch: name it with `branch`.")
    if format == "json":
        span = None if branch is None else EpochSpan(branch, first, last)
        return node.lineage.read(name, page, LineageOptions(fold, slices, span))
    drawn = node.lineage.read(name, page, LineageOptions(fold=True, slices=False))
    if format == "dot":
        return Response(as_dot(drawn), media_type="text/vnd.graphviz")
    # Opened directly in a browser, the image is a document of this origin: it must not run or load anything.
    headers = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
    return Response(as_svg(drawn), media_type="image/svg+xml", headers=headers)
