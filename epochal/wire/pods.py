"""What a pod that is kept for work says to the control plane that keeps it, under ``/internal/v1/pods/{pod}/``.

====================================  =========================  ==================================================
call                                  body                       answer
====================================  =========================  ==================================================
``GET  work?ready=&seconds=``         none                       200 the work, 204 there is none yet
``GET  wanted``                       none                       204
``GET  artifacts/{sha256}``           none                       200 the bytes
``PUT  answer``                       what came of the work      204
``GET  attempt?ready=&seconds=``      none                       200 :class:`TakenFor`, 204 there is none yet
====================================  =========================  ==================================================

Every call needs the token that a cluster has made for the pod, and may be repeated. 404: the control plane
does not keep the pod (any more), which ends when it finds none that does; 503: to be asked again.

``attempt`` is for drivers without an application, and is answered by every control plane: which attempt a pod was taken
for is in the catalog. Its keeper alone says 204. The pod then fetches its orders as every driver does.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

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
