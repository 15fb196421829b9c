"""What driver and control plane say to each other under ``/internal/v1/executions/{id}/attempts/{n}/``.

====================================  =========================  ==================================================
call                                  body                       answer
====================================  =========================  ==================================================
``POST orders``                       :class:`FetchOrders`       200 the orders of a driver, without a token
``POST begin``                        none                       200 :class:`RecoveryPoint`
``POST epochs``                       :class:`OpenEpoch`         204
``GET  epochs/{e}``                   none                       200 :class:`EpochRecord`, or 404 ``not-found``
``POST epochs/{e}/prepare``           :class:`PrepareEpoch`      204
``POST epochs/{e}/commit``            none                       204
``POST epochs/{e}/abort``             :class:`AbortEpoch`        204
``POST heartbeat``                    :class:`DriverStatus`      200 :class:`Directives`
``GET  directives?after=&seconds=``   none                       200 :class:`NewestDirective`
``GET  calls?after=&through=``        none                       200 :class:`InboxPage`
``GET  calls?after=&seconds=``        none                       200 :class:`InboxPage`
``POST directives/{d}``               :class:`CompleteDirective` 204
``POST report``                       :class:`DriverReport`      204
``POST finish``                       :class:`FinishAttempt`     204
====================================  =========================  ==================================================

Every call needs the driver's token but ``orders``: that needs the token that a cluster has made for the driver's pod,
and tells the control plane the token of the others.

Every call may be repeated: a repeated write that had landed answers as the first did. A later attempt makes each answer
409 ``fenced``; an unknown outcome is 503 ``outcome-unknown`` or ``catalog-unavailable``, and the driver calls again.

Drivers outlive a control plane, and may be of another version than the next one. So they ignore unknown fields of an
answer, and answer a directive that they do not know with a failure. Requests with unknown fields are refused: what a
later driver says that an earlier control plane need not know goes into headers, or into calls of its own, whose 404
(``no-such-path``) it takes for an answer. Of a report, on which nothing depends, what is known is taken. Every call
says the driver's version, and its :data:`PROTOCOL`; one that is further than one from the control plane's is told to
stop at an epoch boundary, and started again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from epochal.contracts.catalog import Directive, EpochCounts, EpochTerms, Failure, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.wire.bodies import Sha256

PROTOCOL = 1
"""Protocol of this version. Each change that the other side must support increments it. Versions whose protocols differ
by at most one are compatible."""
PROTOCOL_HEADER = "Epochal-Protocol"
VERSION_HEADER = "Epochal-Version"


def understood(protocol: int) -> bool:
    """Whether a driver with this protocol can be served for as long as it runs."""
    return abs(protocol - PROTOCOL) <= 1


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FetchOrders(_Body):
    """``token_sha256``: of the token that the driver will show from then on, which it has made itself."""

    token_sha256: Sha256


def new_driver_token(execution: str, attempt: int) -> str:
    """256 random bits, for one attempt."""
    return f"epd_{execution}.{attempt}_{secrets.token_urlsafe(32)}"


class OpenEpoch(_Body):
    """E1."""

    epoch: int
    parent: EpochKey | None


class PrepareEpoch(_Body):
    """E4."""

    parent: EpochKey | None
    manifest: ManifestReference
    counts: EpochCounts
    terms: EpochTerms = EpochTerms()


class AbortEpoch(_Body):
    failure: Failure


class CompleteDirective(_Body):
    head: ManifestReference | None
    failure: Failure | None = None


class FinishAttempt(_Body):
    failure: Failure | None = None


LISTEN_SECONDS = 2.0
"""So long a driver's question for directives is held at most."""


class NewestDirective(_Body):
    """``newest``: the id of a directive that waits; ``None``: there is no newer one."""

    newest: str | None = None


CALLS_HEADER = "Epochal-Calls-Through"
"""Of a prepare, ``EpochTerms.calls_through``."""
CALLS_AT_ONCE = 20_000
"""So many calls an answer holds at most, and the rest of a batch."""
CALLS_BYTES = 8 << 20
"""So many bytes of them, and the rest of a batch."""


class UnknownDirective(_Body):
    """A directive as far as a driver of another version can read it: its kind is new, or what it needs is not there."""

    id: str
    kind: str


class ReadDirectives(_Body):
    """:class:`Directives` as a driver reads it."""

    directives: Sequence[Annotated[Directive | UnknownDirective, Field(union_mode="left_to_right")]] = ()
    control_planes: Sequence[str] = ()


class Directives(_Body):
    """The answer to a heartbeat: what the control plane wants, oldest first; where drivers can call, itself first."""

    directives: Sequence[Directive] = ()
    control_planes: Sequence[str] = ()


WAIT_SECONDS = 10.0
"""So long a question for work is held at most."""
CONTROL_PLANES_HEADER = "Epochal-Control-Planes"
"""Of an answer to ``attempt``: where drivers may call, with blanks in between, who answers first."""
LARGEST_ANSWER = 64 << 20
"""In bytes."""


class TakenFor(BaseModel):
    """The attempt whose driver a spare has become."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    execution: str
    attempt: int


def takes_answer(path: str) -> bool:
    """Whether what is sent to this path may be as large as an answer."""
    return path.startswith("/internal/v1/pods/") and path.endswith("/answer")
