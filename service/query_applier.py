"""Applier of a query node: maintains the replicas that its workers read.

``python -m epochal.service.query_applier``: see :mod:`epochal.service.runtime.kept_process`.
"""

from __future__ import annotations

import signal
import threading

from epochal.errors import EpochalError
from epochal.service.query_composition import QueryOrders, compose_applier
from epochal.service.runtime.kept_process import BEAT_SECONDS, ParentConnection
from epochal.service.runtime.service_logs import configure_logs
from epochal.service.runtime.undumpable import close_process


def main() -> None:
    parent = ParentConnection()
    close_process()
    configure_logs()
    line = parent.orders()
    if not line:
        return
    orders = QueryOrders.model_validate_json(line)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    parent.when_over(over.set)
    database, replicas, hints = compose_applier(orders)
    try:
        replicas.open()
    except EpochalError as error:
        parent.failed(error)
        return
    hints.open(replicas.heard)
    parent.ready()
    while not over.wait(BEAT_SECONDS):
        parent.beat()
    hints.close()
    replicas.close()
    database.close()


if __name__ == "__main__":
    main()
