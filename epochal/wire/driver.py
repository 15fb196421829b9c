"""What driver and control plane say to each other under ``/internal/v1/executions/{id}/attempts/{n}/``.

====================================  =========================  ==================================================
call                                  body                       answer
====================================  =========================  ==================================================
``POST begin``                        none                       200 :class:`RecoveryPoint`
``POST epochs``                       :class:`OpenEpoch`         204
``GET  epochs/{e}``                   none                       200 :class:`EpochRecord`, or 404 ``not-found``
``POST epochs/{e}/prepare``           :class:`PrepareEpoch`      204
``POST epochs/{e}/commit``            none                       204
``POST epochs/{e}/abort``             :class:`AbortEpoch`        204
``POST heartbeat``                    :class:`DriverStatus`      200 :class:`Directives`
``POST directives/{d}``               :class:`CompleteDirective` 204
``POST finish``                       :class:`FinishAttempt`     204
====================================  =========================  ==================================================

Every call may be repeated: a repeated write that had landed answers as the first did. A later attempt makes each answer
409 ``fenced``; an unknown outcome is 503 ``outcome-unknown`` or ``catalog-unavailable``, and the driver calls again.

Drivers outlive a control plane, and may be of another version than the next one. So they ignore unknown fields of an
answer, and answer a directive that they do not know with a failure. Requests with unknown fields are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from epochal.contracts.catalog import Directive, EpochCounts, EpochTerms, Failure, ManifestReference
from epochal.contracts.identity import EpochKey


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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


class UnknownDirective(_Body):
    """A directive as far as a driver of another version can read it: its kind is new, or what it needs is not there."""

    id: str
    kind: str


class ReadDirectives(_Body):
    """:class:`Directives` as a driver reads it."""

    directives: Sequence[Annotated[Directive | UnknownDirective, Field(union_mode="left_to_right")]] = ()


class Directives(_Body):
    """The answer to a heartbeat: what the control plane wants, oldest first."""

    directives: Sequence[Directive] = ()
