"""What runs in the executors: steps T1, T2 and T3 of an epoch (E2), one object per operator or sink.

Every task is a frozen dataclass that Spark pickles once per job and calls as the function of ``mapInArrow``.

``epochal.engine.tasks.operator``::

    OperatorTask(
        operator: str,                      # the operator's name, as in messages, handles (``owner``) and manifests
        work: Work,                         # what T2 does: one of the three below
        backend: StateBackend,
        epoch: EpochScope,
        parallelism: int,
        max_parallelism: int,
        tables: tuple[StateTable, ...],     # all state tables of this operator; () for a stateless function
        chains: Mapping[str, Chain],        # by table id; one mapping for all subtasks
        key: tuple[Column, ...],            # the operator's key columns
        output: pa.Schema,                  # the operator's output columns, without ``_handle`` and ``_subtask``
        silent: bool = False,               # nobody reads the output: give only the handles
    )
    OperatorTask.schema -> pa.Schema        # output + ``_handle`` binary + ``_subtask`` int32: what the task yields

``Work``, one of::

    aggregate.AggregateWork(plan: AggregationPlan)      # output = key columns + the table's value columns, merged
    process.ProcessWork(process: type[KeyedProcess], columns: tuple[str, ...], chunk_rows: int = 65_536)
    process_batch.ProcessBatchWork(function: BatchFunction, columns: tuple[str, ...])

``columns`` are the names of the row's columns (the operator's input, key columns included), in the author's order.

Input of an operator task, by name, in any order: ``_mark`` int32 (null in real rows; anything else in a mark),
``_subtask`` int32 (of the row, or the subtask that the mark calls), ``_kg`` int32 (null in marks), the key columns,
the value columns. ``process`` needs the rows sorted by (``_subtask``, marks first, key columns, ``order_by``).

Output: rows with null ``_handle`` and ``_subtask``; after the last row of each subtask one row with nulls in the output
columns, ``_handle`` = ``Handle.encode()`` and ``_subtask``.

``epochal.engine.tasks.sink``::

    SinkTask(sink: str, backend: SinkBackend, epoch: EpochScope)
    SINK_RESULT: pa.Schema                  # ``sink`` string, ``partition`` int32, ``handle`` binary; one row per task

``epochal.engine.failures.failure_of(exception) -> Failure`` reads back, in the driver, what any of them raised.
"""
