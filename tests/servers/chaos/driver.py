"""The driver of the chaos runs: ``epochal run`` with its store at another place than its folder."""

from __future__ import annotations

import os
from typing import Any

from epochal.cli import local_run
from epochal.contracts.configuration import ExecutionOrders
from epochal.testing import drivers

STORE = "CHAOS_STORE"
"""Variable with the URL of the store."""
CACHE = "CHAOS_CACHE"
"""Variable with the path of the cache, which is not in the driver's folder where each machine has its own."""


def main() -> None:
    def ordered(**orders: Any) -> ExecutionOrders:
        cache = os.environ.get(CACHE, orders["cache_directory"])
        return ExecutionOrders(**{**orders, "store": os.environ[STORE], "cache_directory": cache})

    vars(local_run)["ExecutionOrders"] = ordered
    drivers.main()
