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
        description="Id of a call, unique within the application. A request with the same id and arguments is the same "
        "call. 1 to 200 letters, digits and `._~:@+=-`, starting with a letter or digit.",
        examples=["order-17"],
    ),
]


def are_request_ids(texts: Sequence[str]) -> bool:
    """Return whether all texts are valid request ids. Raises ``TypeError`` for other types."""
    lines = "\n".join([*texts, ""])
    return lines.count("\n") == len(texts) and _REQUEST_IDS.fullmatch(lines) is not None


AnswerSeconds = Annotated[
    float,
    Field(
        ge=0, le=LONGEST_WAIT_SECONDS, description="Timeout for the answers. The calls are executed even if it expires."
    ),
]
Arguments = Annotated[dict[str, Any], Field(description="Arguments by name; the entry's `arguments` describe them.")]


class Call(Body):
    """One call. Without a ``request_id`` one is assigned, and the call cannot be repeated safely if its answer is
    lost."""

    request_id: RequestId | None = None
    arguments: Arguments = Field(default_factory=dict)


class CallRequest(Call):
    """One call, or up to a thousand in ``calls``, which are accepted or refused together."""

    calls: Annotated[list[Call], Field(min_length=1, max_length=MOST_CALLS)] | None = None

    @model_validator(mode="after")
    def _one_or_many(self) -> CallRequest:
        if self.calls is not None and self.model_fields_set - {"calls"}:
            raise ValueError("give one call, or several in calls, not both")
        return self


CallState = Literal["waiting", "answered", "expired"]


class CallAnswer(Answer):
    """``waiting``: not answered yet; ask again with the request id. ``answered``: ``value``, or the ``error`` returned
    by the application, from ``epoch``. ``expired``: the call was executed, and its answer has been deleted.
    """

    request_id: str
    state: Open[CallState]
    value: Any = None
    error: str | None = None
    branch: str | None = None
    epoch: int | None = Field(default=None, description="A committed epoch that contains the answer.")


class CallAnswers(Answer):
    """Answers in the order of the calls."""

    calls: list[CallAnswer]


class EntryDescription(Answer):
    """An entry. ``arguments``: JSON Schema of the arguments object. ``returns``: Spark type of values; null: calls are
    answered with null when an epoch has processed them. ``table``: state table of its answers."""

    name: str
    description: str
    arguments: dict[str, Any]
    returns: str | None
    table: str
