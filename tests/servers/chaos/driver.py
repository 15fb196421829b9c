"""The driver of the chaos runs: ``epochal run`` with its store at another place than its folder."""

from __future__ import annotations

import os
from typing import Any

from epochal.cli import local_run
from epochal.contracts.configuration import ExecutionOrders
from epochal.testing import drivers

STORE = "CHAOS_STORE"
"""Variable with the URL of the store."""


def main() -> None:
    def ordered(**orders: Any) -> ExecutionOrders:
        return ExecutionOrders(**{**orders, "store": os.environ[STORE]})

    vars(local_run)["ExecutionOrders"] = ordered
    drivers.main()
