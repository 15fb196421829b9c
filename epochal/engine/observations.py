"""Metrics that Spark observes while it runs a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Observation

_NO_ROW = "PythonSQLUtils.toPyRow"


def observed(observation: Observation) -> Mapping[str, Any]:
    """Metrics of an observation after its job; empty if Spark did not observe it.

    Spark drops an observation together with a part of the plan that is known to be empty (an always-false filter, a
    limit of 0, an empty relation). The result is a row without columns, which pyspark cannot convert.
    """
    try:
        return observation.get
    except Exception as error:
        if _NO_ROW in str(error):
            return {}
        raise
