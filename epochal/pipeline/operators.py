"""What an operator keeps and gives: its state tables and its output columns, from the schema of its input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.errors import PipelineError
from epochal.pipeline.aggregation import plan_aggregation
from epochal.pipeline.carried import carried_schema
from epochal.pipeline.graph import AggregateNode, OperatorNode, ProcessBatchNode, ProcessNode
from epochal.pipeline.keyed import BatchFunction, KeyedProcess
from epochal.pipeline.keys import RESERVED, key_columns
from epochal.pipeline.spark_errors import at
from epochal.pipeline.state import declared_states
from epochal.pipeline.verbs import require_columns
from epochal.state.table import StateTable
from epochal.state.type_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def implementation(node: ProcessNode | ProcessBatchNode) -> type[KeyedProcess] | type[BatchFunction]:
    """The author's class."""
    return node.process if isinstance(node, ProcessNode) else type(node.function)


def state_tables(node: OperatorNode, frame: DataFrame) -> tuple[StateTable, ...]:
    """The node's state tables, over its input. Raises ``PipelineError`` or ``SchemaError`` with operator and fix.

    An aggregate's table has the operator's name; a declared state's is ``operator.state``.
    """
    if isinstance(node, AggregateNode):
        return (plan_aggregation(node, frame).table,)
    keys = key_columns(node, frame.schema)
    names = {column.name.casefold() for column in keys}
    tables = []
    with at(f"Operator {node.name!r}"):
        carried_schema(frame.schema)
        for state in declared_states(implementation(node)).values():
            table = state.table(node.name, keys)
            used = set(names)
            for column in (*table.sub_key, *table.value):
                if column.name.casefold() in used:
                    raise PipelineError(
                        f"state {state.name!r} has a column {column.name!r}, as the key or the state has already. "
                        "Rename it."
                    )
                used.add(column.name.casefold())
            tables.append(table)
    return tuple(tables)


def output_schema(node: OperatorNode, frame: DataFrame) -> StructType:
    """The operator's output columns, over its input. Raises ``PipelineError`` with operator and fix."""
    if isinstance(node, AggregateNode):
        plan = plan_aggregation(node, frame)
        return plan.finish(plan.unmerged(frame)).schema
    return declared_output(node)


def declared_output(node: ProcessNode | ProcessBatchNode) -> StructType:
    """The ``output`` of the author's class, read by Spark. Raises ``PipelineError`` with operator and fix."""
    from pyspark.sql.types import StructType

    declared = implementation(node).output
    with at(f"Operator {node.name!r}, output {declared!r}"):
        schema = StructType.fromDDL(declared) if isinstance(declared, str) else declared
        if not isinstance(schema, StructType):
            raise PipelineError("give 'column type, ..' or a StructType.")
        seen: set[str] = set()
        for name in schema.names:
            if name.casefold() in seen:
                raise PipelineError(f"it names column {name!r} twice.")
            if name.casefold() in RESERVED:
                raise PipelineError(f"column {name!r} has a name that Epochal uses itself. Rename it.")
            seen.add(name.casefold())
        carried_schema(schema)
    return schema


def check_order(node: ProcessNode, frame: DataFrame) -> None:
    """Are the columns of ``order_by`` there, and can they be sorted by? Raises ``PipelineError``."""
    with at(f"Operator {node.name!r}, order_by"):
        require_columns(node.process.order_columns(), frame.columns)
        for name in node.process.order_columns():
            if frame.select(quoted(name)).dtypes[0][1].startswith(("map", "variant")):
                raise PipelineError(f"column {name!r} cannot be sorted by. Order by another, or by a field of it.")
