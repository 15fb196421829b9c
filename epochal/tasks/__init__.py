"""Tasks of operators and sinks in the executors: steps T1, T2 and T3 of an epoch (E2), one object per operator or sink.

Every task is a frozen dataclass that Spark pickles once per job and calls as the function of ``mapInArrow``:
:class:`~epochal.tasks.operator.OperatorTask` for an operator, with the ``Work`` of its kind
(``epochal.operators.*.work``), :class:`~epochal.tasks.sink.SinkTask` for a sink, and
:class:`~epochal.tasks.fused_sink_task.FusedSinkTask` for an operator and its sink in one.

Input columns of an operator task, by name, in any order: ``_mark`` int32 (null or ``UNMARKED`` in rows, any other
number in a mark row), ``_subtask`` int32 (the subtask of the row, or the subtask that the mark row starts), ``_kg``
int32 (the key group; null in mark rows), the key columns, the value columns. ``process`` requires rows sorted by
(``_subtask``, mark rows first, key columns, ``order_by``).

Output of an operator task: rows with null ``_handle`` and ``_subtask``; after the last row of each subtask, one row
with nulls in the output columns, ``_handle`` = ``Handle.encode()`` and ``_subtask``. A sink task yields one row of
``SINK_RESULT`` per partition.

In the driver, :func:`epochal.engine.failures.failure_of` reads the error that a task raised.
"""
