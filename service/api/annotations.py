from __future__ import annotations

from fastapi import APIRouter, status

from epochal.errors import NameTaken
from epochal.service.api.access import requires
from epochal.service.api.answers import SNAPSHOT, answers
from epochal.service.api.context import Control, Node
from epochal.service.api.gate import Caller
from epochal.service.api.paging import Paging
from epochal.wire.bodies import EpochNumber, Page
from epochal.wire.snapshots import (
    CreatePin,
    CreateTag,
    SnapshotMessageAnswer,
    SnapshotPinAnswer,
    SnapshotTagAnswer,
    WriteMessage,
)
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}", tags=["annotations"])


@router.get("/pins")
@requires(Role.VIEWER)
@answers(*SNAPSHOT)
def list_pins(name: str, page: Paging, node: Node) -> Page[SnapshotPinAnswer]:
    """By branch and epoch."""
    return node.registered.pins(name, page)


@router.get("/tags")
@requires(Role.VIEWER)
@answers(*SNAPSHOT)
def list_tags(name: str, page: Paging, node: Node) -> Page[SnapshotTagAnswer]:
    """By name."""
    return node.registered.tags(name, page)


@router.post("/snapshots/{epoch}/pin", status_code=status.HTTP_201_CREATED)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT, NameTaken)
def pin_snapshot(
    name: str, epoch: EpochNumber, request: CreatePin, control: Control, caller: Caller
) -> SnapshotPinAnswer:
    """Keep the snapshot until it is unpinned."""
    return control.annotations.pin(name, epoch, request, caller.name)


@router.get("/snapshots/{epoch}/pin")
@requires(Role.VIEWER)
@answers(*SNAPSHOT)
def get_pin(name: str, epoch: EpochNumber, node: Node) -> SnapshotPinAnswer:
    """Who pinned it, when, and why."""
    return node.registered.pin(name, epoch)


@router.delete("/snapshots/{epoch}/pin", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT)
def unpin_snapshot(name: str, epoch: EpochNumber, control: Control) -> None:
    """The snapshot then lives as long as any other of its age."""
    control.annotations.unpin(name, epoch)


@router.post("/snapshots/{epoch}/tags", status_code=status.HTTP_201_CREATED)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT, NameTaken)
def tag_snapshot(
    name: str, epoch: EpochNumber, request: CreateTag, control: Control, caller: Caller
) -> SnapshotTagAnswer:
    """Give the snapshot a further name, which does not keep it."""
    return control.annotations.tag(name, epoch, request, caller.name)


@router.get("/snapshots/{epoch}/tags")
@requires(Role.VIEWER)
@answers(*SNAPSHOT)
def get_tags(name: str, epoch: EpochNumber, node: Node) -> Page[SnapshotTagAnswer]:
    """The snapshot's tags, by name; all of them in one page."""
    return node.registered.tags_of(name, epoch)


@router.delete("/snapshots/{epoch}/tags/{tag}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT)
def untag_snapshot(name: str, epoch: EpochNumber, tag: str, control: Control) -> None:
    control.annotations.untag(name, epoch, tag)


@router.post("/snapshots/{epoch}/message", status_code=status.HTTP_201_CREATED)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT, NameTaken)
def write_message(
    name: str, epoch: EpochNumber, request: WriteMessage, control: Control, caller: Caller
) -> SnapshotMessageAnswer:
    """Say something about the snapshot; it takes the place of what was said before."""
    return control.annotations.write(name, epoch, request, caller.name)


@router.get("/snapshots/{epoch}/message")
@requires(Role.VIEWER)
@answers(*SNAPSHOT)
def get_message(name: str, epoch: EpochNumber, node: Node) -> SnapshotMessageAnswer:
    return node.registered.message(name, epoch)


@router.delete("/snapshots/{epoch}/message", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT)
def erase_message(name: str, epoch: EpochNumber, control: Control) -> None:
    control.annotations.erase(name, epoch)
