"""Sequences of histories, run in parallel by worker processes with their own servers."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.servers.chaos.history import History, Place, Report
from tests.servers.chaos.servers import running_servers


def live_in_parallel(
    seeds: Sequence[int], lives: int, workers: int, place: Place | None = None, cluster: bool = False
) -> list[Report]:
    """Distribute the seeds to worker processes, round robin. Raises the exception of a failed worker."""
    shares = [share for first in range(workers) if (share := seeds[first::workers])]
    with ProcessPoolExecutor(len(shares), multiprocessing.get_context("spawn")) as processes:
        futures = [processes.submit(live, share, lives, False, place, cluster) for share in shares]
        return [report for future in as_completed(futures) for report in future.result()]


def live(
    seeds: Sequence[int], lives: int, keep: bool = False, place: Place | None = None, cluster: bool = False
) -> list[Report]:
    """Run histories one after the other on new servers. ``keep``: keep the folders of correct histories, too.
    ``place``: of the store; ``None``: chosen by the seed. ``cluster``: with executors on three machines."""
    # As in the other tests: short-lived JVMs do not benefit from the optimizing compiler and parallel collectors.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    reports = []
    with running_servers(cluster) as servers:
        for seed in seeds:
            folder = Path(tempfile.mkdtemp(prefix=f"epochal-chaos-{seed}-"))
            report = History(seed, folder, servers, place).live(lives)
            reports.append(report)
            counts = f"{report.lives} runs, {report.fired.total()} faults, {len(report.violations)} violations"
            lines = [
                f"seed {seed}, store in {report.place}: {counts}",
                *(f"  {violation}" for violation in report.violations),
            ]
            if report.violations or keep:
                again = f"python -m tests.servers.chaos --seed {seed} --store {report.place}{' --cluster' * cluster}"
                lines.append(f"  logs and store: {folder}; again: {again}")
            else:
                shutil.rmtree(folder)
            print("\n".join(lines), flush=True)
    return reports
