"""Which column a computation failed in, when Spark's error does not say. Only a failed epoch pays."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from epochal.aggregates.failed_columns import failure
from epochal.declarations.spark_errors import computation_error
from epochal.errors import ComputationFailed, EpochalError
from epochal.operators.contract import OperatorPlan
from epochal.pipeline.graph import Graph, NodeId, OperatorNode, TransformNode
from epochal.state.type_names import quoted


def located(graph: Graph, frames: Mapping[NodeId, DataFrame], plans: Mapping[str, OperatorPlan]) -> EpochalError | None:
    """The error that names verb or operator, and the column; ``None`` where none of them finds the failure.

    ``frames``: of the graph's nodes over the epoch's slices, as far as they were made. What reads another operator's
    output is left out, as its task would have to run again.
    """
    operators = {node.id for node in graph.operators}
    for node in graph.nodes:
        found: EpochalError | None = None
        match node:
            case TransformNode() if node.id in frames and not operators & graph.ancestors([node.id]):
                found = _of_verb(node.label, frames[node.id])
            case OperatorNode() if frames.keys() >= set(node.inputs) and not operators & graph.ancestors(node.inputs):
                found = plans[node.name].located([frames[id] for id in node.inputs])
        if found is not None:
            return found
    return None


def _of_verb(label: str, frame: DataFrame) -> ComputationFailed | None:
    """The verbs before it compute what they give; so a column that fails here is computed here."""
    found = failure(frame)
    if found is None:
        return None
    names = [] if failure(frame.select(F.lit(1))) is not None else frame.columns
    while len(names) > 1:
        half = names[: len(names) // 2]
        names = half if failure(frame.select(*map(quoted, half))) is not None else names[len(half) :]
    where = f"{label}, column {names[0]!r}" if names else label
    return ComputationFailed(f"{where}: {computation_error(found)}")
