"""What Spark observes of frames while it runs a job, read back afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Observation

_NO_ROW = "PythonSQLUtils.toPyRow"


def observed(observation: Observation) -> Mapping[str, Any]:
    """The metrics of a job that has ended; empty when nothing was observed.

    Spark leaves an observation out together with a part of the plan that it knows to give no rows (a filter that is
    always false, a limit of 0, an empty relation). It then has a row without columns, which pyspark cannot convert.
    """
    try:
        return observation.get
    except Exception as error:
        if _NO_ROW in str(error):
            return {}
        raise
