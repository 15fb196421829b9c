"""Delta tables: ``delta.sink`` appends each epoch in one version of a table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from epochal.backends.delta_lake.address import DeltaAddress
from epochal.connectors.sink_modes import EXACTLY_ONCE, Mode, check_delivery, described, taken_by_folder
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.errors import OptionError
from epochal.pipeline.definitions import SinkDefinition, check_options

_OWN: Final = ("mode", "delivery", "partition_by")


def sink(
    path: str,
    *,
    partition_by: str | Sequence[str] = (),
    mode: Mode = "append",
    delivery: Delivery | None = None,
    **options: Any,
) -> SinkDefinition:
    """Append each epoch's rows to a Delta table, in one version. Delivery is exactly once, also beside other writers.

    The table is created if it does not exist. Rows may lack columns of the table that are not NOT NULL. Requires
    ``pip install 'epochal[delta]'``.

    - ``path``: folder of the table, local or on S3, GCS or Azure (``s3://bucket/orders``).
    - ``partition_by``: columns by which a missing table is partitioned: strings, integers, booleans or dates.
    - ``mode``: ``append`` accepts append-only streams; ``updates`` also accepts streams whose rows replace earlier rows
      (such as the result of ``aggregate``), and appends the rows that changed.
    - ``delivery``: only ``exactly_once``.
    - ``options``: credentials of an object store, as in ``files.source``.

    Raises ``OptionError``.
    """
    what = "delta.sink"
    address, others = DeltaAddress.checked(what, path, options)
    check_options(what, others, _OWN)
    check_delivery(what, delivery, EXACTLY_ONCE, "an epoch's rows appear together in one version, or not at all")
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if len(set(columns)) < len(columns) or not all(isinstance(name, str) and name for name in columns):
        raise OptionError(f"{what}: partition_by must name different columns.")
    if find_spec("deltalake") is None:
        raise OptionError(f"{what} needs the package deltalake. Install it with: pip install 'epochal[delta]'.")
    return SinkDefinition(
        kind="delta",
        make=partial(_backend, address, columns),
        description={
            "path": path,
            **({"partition_by": list(columns)} if columns else {}),
            **described(mode),
            **address.described,
        },
        takes=taken_by_folder(what, mode),
    )


def _backend(address: DeltaAddress, partition_by: Sequence[str], place: SinkPlace) -> SinkBackend:
    from epochal.backends.delta_lake.sink import DeltaSink

    return DeltaSink(place, address, partition_by)
