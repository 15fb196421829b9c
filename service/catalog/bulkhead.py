"""Threads and catalog connections of their own, for work that must not wait behind anything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TypeVar, TypeVarTuple

from epochal.service.catalog.database import Database

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Bulkhead:
    """What drivers are answered by: whatever else fills the common threads and connections, these stay free.

    A heartbeat that waits in line behind submissions or look-ups costs a healthy driver its execution. Each thread
    needs one connection.
    """

    def __init__(self, url: str, threads: int) -> None:
        self.database = Database(url, connections=threads, urgent=True)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="drivers")

    async def run(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """``function(*arguments)``, in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, partial(copy_context().run, function, *arguments)
        )

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.database.close()
