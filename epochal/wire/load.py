from __future__ import annotations

from datetime import datetime

from pydantic import Field

from epochal.contracts.measurements import OperatorLoad
from epochal.wire.bodies import ALL_SAID, Answer


class AutoscalingAnswer(Answer):
    """What autoscaling makes of it: ``parallelism`` is set where it is about to rescale."""

    parallelism: int | None
    reason: str


class LoadAnswer(Answer):
    """How busy the operators of an application that runs were lately, as its driver has last reported."""

    model_config = ALL_SAID

    application: str
    reported_at: datetime | None = Field(description="Unset before the first report of the attempt that runs.")
    version: int | None
    parallelism: int
    epoch: int | None = Field(description="The latest epoch that was measured; unset where none was.")
    seconds: float = Field(description="The length of the window, which ended with the report.")
    busy_share: float = Field(description="Seconds of work of all operators in it, by subtask and second.")
    lag_seconds: float | None = Field(
        description="How far the source that is furthest behind was; unset where none can say."
    )
    operators: dict[str, OperatorLoad]
    autoscaling: AutoscalingAnswer | None = Field(description="Unset where it is switched off, or nothing runs.")
