"""The verbs that call authors' classes: the class is checked and configured, and becomes an operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from epochal.declarations.author_classes import check_times_to_live, checked_hold, with_settings
from epochal.declarations.keyed import (
    BatchFunction,
    BroadcastProcess,
    KeyedProcess,
    check_batch_function,
    check_broadcast,
    check_process,
    has_timers,
)
from epochal.declarations.names import check_name, listed, name_of_class
from epochal.declarations.state import declared_states
from epochal.declarations.unkeyed import PartialProcess, UnkeyedProcess, check_partial, check_unkeyed
from epochal.declarations.windows import Windowing
from epochal.errors import PipelineError, SchemaError
from epochal.operators.process.broadcast_plan import ProcessBroadcastOperator
from epochal.operators.process.partial_plan import MergeAnswersOperator, ProcessPartialOperator
from epochal.operators.process.plan import ProcessAnyOperator, ProcessBatchOperator, ProcessOperator
from epochal.operators.windows.process_plan import WindowProcessOperator

Settings = Mapping[str, Any]


def keyed(
    keys: tuple[str, ...],
    process: type[KeyedProcess],
    name: str | None,
    settings: Settings,
    event_time: str | None,
    counts_hops: bool,
) -> ProcessOperator:
    """The operator of ``key_by(..).process(..)``. Raises ``PipelineError`` with the fix."""
    operator = _operator_name(name, process)
    with _in_operator(operator):
        check_process(process)
        configured = with_settings(process, settings)
        check_times_to_live(configured, event_time)
        hold = checked_hold(configured, has_timers(configured), event_time)
    return ProcessOperator(operator, keys, configured, event_time, hold, counts_hops)


def batch(
    keys: tuple[str, ...], function: type[BatchFunction] | BatchFunction, name: str | None
) -> ProcessBatchOperator:
    """The operator of ``key_by(..).process_batch(..)``. Raises ``PipelineError`` with the fix."""
    operator = _operator_name(name, function if isinstance(function, type) else type(function))
    with _in_operator(operator):
        instance = check_batch_function(function)
    return ProcessBatchOperator(operator, keys, instance)


def broadcast(
    keys: tuple[str, ...],
    order_by: tuple[str, ...],
    process: type[BroadcastProcess],
    name: str | None,
    settings: Settings,
) -> ProcessBroadcastOperator:
    """The operator of ``connect(..).key_by(..).process(..)``. Raises ``PipelineError`` with the fix."""
    operator = _operator_name(name, process)
    with _in_operator(operator):
        check_broadcast(process)
        configured = with_settings(process, settings)
    return ProcessBroadcastOperator(operator, keys, order_by, configured)


def control_order(broadcast: bool, order_by: str | Sequence[str]) -> tuple[str, ...]:
    """The columns that order the rows of a control stream. Raises ``PipelineError`` with the fix."""
    if broadcast is not True:
        raise PipelineError(
            "connect() sends all rows of the control stream to every subtask: add broadcast=True. If each key needs "
            "only its own rows of both streams, use union()."
        )
    columns = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    if not columns or not all(columns):
        raise PipelineError(
            "connect() requires order_by, the columns that define the order of the control rows, such as "
            "order_by='at'. Without them the subtasks would apply the rows in different orders."
        )
    return columns


def unkeyed(process: type[UnkeyedProcess], name: str | None, settings: Settings) -> ProcessAnyOperator:
    """The operator of ``process_any(..)``. Raises ``PipelineError`` with the fix."""
    operator = _operator_name(name, process)
    with _in_operator(operator):
        check_unkeyed(process)
        configured = with_settings(process, settings)
    return ProcessAnyOperator(operator, configured)


def partial(
    process: type[PartialProcess], name: str | None, settings: Settings, has_requests: bool
) -> tuple[ProcessPartialOperator, MergeAnswersOperator | None]:
    """The operator of ``process_partial(..)``, and the operator that merges the answers of its instances, if any.

    Raises ``PipelineError`` with the fix.
    """
    operator = _operator_name(name, process)
    with _in_operator(operator):
        check_partial(process, has_requests)
        configured = with_settings(process, settings)
    merging = None if configured.answer is None else MergeAnswersOperator(f"{operator}-merge", configured, operator)
    return ProcessPartialOperator(operator, configured, has_requests=has_requests), merging


def windowed(
    keys: tuple[str, ...],
    event_time: str,
    windowing: Windowing,
    process: type[KeyedProcess],
    name: str | None,
    settings: Settings,
) -> WindowProcessOperator:
    """The operator of ``window(..).process(..)``. Raises ``PipelineError`` with the fix."""
    operator = _operator_name(name, process)
    where = f"Operator {operator!r}"
    with _in_operator(operator):
        check_process(process)
        configured = with_settings(process, settings)
    if declared_states(process):
        raise PipelineError(
            f"{where}: window(..).process() gets all rows of a window and keeps no other state, but "
            f"{process.__name__} declares {listed(declared_states(process))}. Remove the declaration. For state that "
            "continues from window to window, add a second operator: window(..).process(..).key_by(..).process(..)."
        )
    if has_timers(process):
        raise PipelineError(
            f"{where}: window(..).process() is called when a window closes and cannot set timers. Remove on_timer, or "
            "use key_by(..).process(..)."
        )
    if windowing.emit == "updates":
        raise PipelineError(
            f"{where}: window(..).process() does not support emit='updates': the function returns any number of rows "
            "for a window, so that a later call could not replace them. Remove emit, or use "
            "window(..).aggregate(..) or .top(..), whose rows have a key."
        )
    return WindowProcessOperator(operator, keys, event_time, windowing, configured)


def _operator_name(name: str | None, implementation: Any) -> str:
    return check_name("an operator", name or name_of_class(getattr(implementation, "__name__", "operator")))


@contextmanager
def _in_operator(name: str) -> Iterator[None]:
    """Errors about an author's class name the operator."""
    try:
        yield
    except (PipelineError, SchemaError) as error:
        raise type(error)(f"Operator {name!r}: {error.message}") from None
