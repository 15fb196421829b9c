"""Calls of an application's entries, and their answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from epochal.wire.bodies import Answer, Body, Open

MOST_CALLS = 1_000
DEFAULT_WAIT_SECONDS = 10.0
LONGEST_WAIT_SECONDS = 60.0

_REQUEST_ID = r"[A-Za-z0-9][A-Za-z0-9._~:@+=-]{0,199}"
_REQUEST_IDS = re.compile(f"(?:{_REQUEST_ID}\n)*+")
RequestId = Annotated[
    str,
    StringConstraints(pattern=f"^{_REQUEST_ID}$"),
    Field(
        description="Of one call in the whole application: the same id with the same arguments is the same call. 1 to "
        "200 letters, digits and `._~:@+=-`, beginning with a letter or digit.",
        examples=["order-17"],
    ),
]


def are_request_ids(texts: Sequence[str]) -> bool:
    """Whether all are request ids. Raises ``TypeError`` where one is no text."""
    lines = "\n".join([*texts, ""])
    return lines.count("\n") == len(texts) and _REQUEST_IDS.fullmatch(lines) is not None


AnswerSeconds = Annotated[
    float,
    Field(
        ge=0, le=LONGEST_WAIT_SECONDS, description="Wait at most so long for the answers. The calls go on all the same."
    ),
]
Arguments = Annotated[dict[str, Any], Field(description="By name. The entry's `arguments` say which there are.")]


class Call(Body):
    """One call. Without a ``request_id`` it gets one, and cannot be repeated safely when its answer is lost."""

    request_id: RequestId | None = None
    arguments: Arguments = Field(default_factory=dict)


class CallRequest(Call):
    """One call, or up to a thousand in ``calls``, which are all taken or none."""

    calls: Annotated[list[Call], Field(min_length=1, max_length=MOST_CALLS)] | None = None

    @model_validator(mode="after")
    def _one_or_many(self) -> CallRequest:
        if self.calls is not None and self.model_fields_set - {"calls"}:
            raise ValueError("give one call, or several in calls, not both")
        return self


CallState = Literal["waiting", "answered", "expired"]


class CallAnswer(Answer):
    """``waiting``: not answered yet, ask again by the request id. ``answered``: ``value``, or the ``error`` that the
    application has answered, in the state of ``epoch``. ``expired``: it was taken, and its answer is not kept any more.
    """

    request_id: str
    state: Open[CallState]
    value: Any = None
    error: str | None = None
    branch: str | None = None
    epoch: int | None = Field(default=None, description="A committed epoch that has the answer.")


class CallAnswers(Answer):
    """In the order of the calls."""

    calls: list[CallAnswer]


class EntryDescription(Answer):
    """``arguments``: the JSON Schema of the arguments' object. ``returns``: Spark's name of the type of values; null:
    a call is answered with null once an epoch has taken it. ``table``: the state table of its answers."""

    name: str
    description: str
    arguments: dict[str, Any]
    returns: str | None
    table: str
