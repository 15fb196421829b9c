"""The internal API, which control planes serve to drivers and pods.

Calls of a driver under ``/internal/v1/executions/{id}/attempts/{n}/``:

====================================  =========================  ==================================================
call                                  body                       answer
====================================  =========================  ==================================================
``POST orders``                       :class:`FetchOrders`       200 the driver's orders, without a token
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
``POST directives/{d}/progress``      :class:`DirectiveProgress` 204
``POST report``                       :class:`DriverReport`      204
``POST finish``                       :class:`FinishAttempt`     204
====================================  =========================  ==================================================

Every call requires the driver's token, except ``orders``, which requires the token issued by the cluster for the
driver's pod and registers the token of the other calls.

Every call is idempotent. After the start of a later attempt every call returns 409 ``fenced``. If the outcome is
unknown, the answer is 503 ``outcome-unknown`` or ``catalog-unavailable``, and the driver repeats the call.

A driver outlives its control plane, and may have another version than the next one. Drivers therefore ignore unknown
fields of answers and refuse unknown directives. Requests with unknown fields are refused: optional data that a later
version adds goes into headers or into new calls, which may return 404 (``no-such-path``). Unknown fields of reports are
ignored. Every call contains the driver's version and its :data:`PROTOCOL`. If the protocols differ by more than one,
the control plane stops the driver at an epoch boundary and starts another one.

Calls of a pooled pod under ``/internal/v1/pods/{pod}/``:

====================================  =========================  ==================================================
call                                  body                       answer
====================================  =========================  ==================================================
``GET  work?ready=&seconds=``         none                       200 the work, 204 no work yet
``GET  needed``                       none                       204
``GET  artifacts/{sha256}``           none                       200 the bytes
``PUT  answer``                       the result of the work     204
``GET  attempt?ready=&seconds=``      none                       200 :class:`TakenFor`, 204 no attempt yet
====================================  =========================  ==================================================

Every call requires the token issued by the cluster for the pod, and is idempotent. 404: the control plane does not own
the pod; a pod without an owner ends. 503: the pod repeats the call. ``attempt`` is for drivers without an application
and is answered by every control plane from the catalog; only the owner answers 204. The pod then fetches its orders as
every driver does.
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
    """Return whether a driver with this protocol is compatible."""
    return abs(protocol - PROTOCOL) <= 1


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FetchOrders(_Body):
    """``token_sha256``: SHA-256 of the token that the driver has generated for its further calls."""

    token_sha256: Sha256


def new_driver_token(execution: str, attempt: int) -> str:
    """Generate a token with 256 random bits for one attempt."""
    return f"epd_{execution}.{attempt}_{secrets.token_urlsafe(32)}"


class OpenEpoch(_Body):
    """Request of protocol step E1."""

    epoch: int
    parent: EpochKey | None


class PrepareEpoch(_Body):
    """Request of protocol step E4."""

    parent: EpochKey | None
    manifest: ManifestReference
    counts: EpochCounts
    terms: EpochTerms = EpochTerms()


class AbortEpoch(_Body):
    failure: Failure


class CompleteDirective(_Body):
    head: ManifestReference | None
    failure: Failure | None = None


RESULT_HEADER = "Epochal-Directive-Result"
"""Header of the completion of a directive ``optimize``: its ``OptimizeResult`` as JSON."""


class DirectiveProgress(_Body):
    progress: Annotated[str, Field(max_length=500)]


class FinishAttempt(_Body):
    failure: Failure | None = None


LISTEN_SECONDS = 2.0
"""Maximum time that the control plane delays the answer to a poll for directives or calls."""


class NewestDirective(_Body):
    """``newest``: id of a waiting directive; ``None`` if there is no newer one."""

    newest: str | None = None


CALLS_HEADER = "Epochal-Calls-Through"
"""Header of a prepare request with ``EpochTerms.calls_through``."""
CALLS_AT_ONCE = 20_000
"""Maximum number of calls in an answer, beyond which the current batch is completed."""
CALLS_BYTES = 8 << 20
"""Maximum size of the calls in an answer in bytes, beyond which the current batch is completed."""


class UnknownDirective(_Body):
    """A directive that a driver of another version cannot read completely."""

    id: str
    kind: str


class ReadDirectives(_Body):
    """:class:`Directives` as a driver reads it."""

    directives: Sequence[Annotated[Directive | UnknownDirective, Field(union_mode="left_to_right")]] = ()
    control_planes: Sequence[str] = ()


class Directives(_Body):
    """The answer to a heartbeat: directives, oldest first, and addresses of control planes, the answering one first."""

    directives: Sequence[Directive] = ()
    control_planes: Sequence[str] = ()


WAIT_SECONDS = 10.0
"""Maximum time that the control plane delays the answer to a poll for work."""
CONTROL_PLANES_HEADER = "Epochal-Control-Planes"
"""Header of an answer to ``attempt``: space-separated addresses of control planes, the answering one first."""
LARGEST_ANSWER = 64 << 20
"""Number of bytes."""


class TakenFor(BaseModel):
    """The attempt for which a spare driver was taken."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    execution: str
    attempt: int


def takes_answer(path: str) -> bool:
    """Return whether requests to this path may have the size of an answer."""
    return path.startswith("/internal/v1/pods/") and path.endswith("/answer")
