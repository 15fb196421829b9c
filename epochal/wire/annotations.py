from __future__ import annotations

from datetime import datetime

from epochal.wire.bodies import Answer, Body, Message, Name


class CreatePin(Body):
    message: Message | None = None


class CreateTag(Body):
    """``move``: the tag may be another snapshot's, and is this one's from now on."""

    name: Name
    message: Message | None = None
    move: bool = False


class WriteMessage(Body):
    """It takes the place of an earlier one."""

    message: Message


class _Said(Answer):
    branch: str
    epoch: int
    created_at: datetime
    created_by: str


class PinAnswer(_Said):
    """The snapshot is kept until it is unpinned."""

    message: str | None


class TagAnswer(_Said):
    """A further name of a snapshot, which it does not keep: pin it, too."""

    name: str
    message: str | None


class MessageAnswer(_Said):
    message: str


class Annotations(Answer):
    """All that was said of one snapshot."""

    pin: PinAnswer | None = None
    tags: tuple[TagAnswer, ...] = ()
    message: MessageAnswer | None = None
