"""Pins, tags and messages on the snapshots of one application."""

from __future__ import annotations

from epochal.client.models import Pin, SnapshotMessage, Tag
from epochal.client.paths import path
from epochal.client.transport import Transport
from epochal.wire.bodies import read


class Annotations:
    """``client.application(name).annotations``"""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def pin(self, epoch: int, message: str | None = None) -> Pin:
        """Keep a snapshot until it is unpinned. Raises ``SnapshotExpired`` when it is too late."""
        return read(Pin, self._transport.post(self._of(epoch, "pin"), {"message": message}))

    def unpin(self, epoch: int) -> None:
        """The snapshot then lives as long as any other of its age."""
        self._transport.delete(self._of(epoch, "pin"))

    def pins(self) -> list[Pin]:
        return self._transport.pages(path("applications", self._application, "pins"), Pin, None)

    def tag(self, epoch: int, name: str, message: str | None = None, *, move: bool = False) -> Tag:
        """Give a snapshot a further name, which does not keep it. Raises ``NameTaken`` unless it may ``move``."""
        body = {"name": name, "message": message, "move": move}
        return read(Tag, self._transport.post(self._of(epoch, "tags"), body))

    def untag(self, epoch: int, name: str) -> None:
        self._transport.delete(path("applications", self._application, "snapshots", epoch, "tags", name))

    def tags(self) -> list[Tag]:
        """By name."""
        return self._transport.pages(path("applications", self._application, "tags"), Tag, None)

    def message(self, epoch: int) -> SnapshotMessage:
        """What was said of a snapshot. Raises ``NotFound`` when nothing was."""
        return read(SnapshotMessage, self._transport.get(self._of(epoch, "message")))

    def write_message(self, epoch: int, message: str) -> SnapshotMessage:
        """It takes the place of an earlier one."""
        return read(SnapshotMessage, self._transport.post(self._of(epoch, "message"), {"message": message}))

    def delete_message(self, epoch: int) -> None:
        self._transport.delete(self._of(epoch, "message"))

    def _of(self, epoch: int, what: str) -> str:
        return path("applications", self._application, "snapshots", epoch, what)
