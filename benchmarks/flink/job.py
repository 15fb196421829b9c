"""Runs one SQL job in PyFlink, in the environment ``.flink``: ``python job.py ORDERS ANSWER``.

ORDERS is a JSON file with ``configuration`` (Flink's options), ``statements`` (tables and views), ``insert`` (the job)
and ``port`` (of its REST interface). ANSWER receives ``samples`` (a time in seconds, and the number of events that the
sources had read) and ``finished`` (the time of the job's end). Imports nothing of the project, which is not installed
in ``.flink``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

EVERY_SECONDS = 0.1
SOURCE = "Source"


def main() -> None:
    orders = json.loads(Path(sys.argv[1]).read_text())
    configuration = Configuration()
    for name, value in orders["configuration"].items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    environment = TableEnvironment.create(settings)
    for statement in orders["statements"]:
        environment.execute_sql(statement)
    job = environment.execute_sql(orders["insert"])
    client = job.get_job_client()
    assert client is not None
    progress = Progress(f"http://127.0.0.1:{orders['port']}/jobs/{client.get_job_id()}")
    end = client.get_job_execution_result()
    samples: list[tuple[float, int]] = []
    parent = os.getppid()
    while not end.done():
        if os.getppid() != parent:
            os._exit(1)  # the benchmark was killed; Flink's JVM ends with its input
        with suppress(OSError, ValueError, KeyError):  # the job has not started yet, or has just ended
            samples.append((time.monotonic(), progress.events()))
        time.sleep(EVERY_SECONDS)
    finished = time.monotonic()
    end.result()  # raises the error of a job that failed
    Path(sys.argv[2]).write_text(json.dumps({"samples": samples, "finished": finished}))


class Progress:
    """Number of events that the source of a job has read, from Flink's REST interface."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._metrics: list[str] = []

    def events(self) -> int:
        if not self._metrics:
            self._metrics = list(self._find())
        return sum(self._value(metric) for metric in self._metrics)

    def _find(self) -> Any:
        for vertex in self._get("")["vertices"]:
            place = f"/vertices/{vertex['id']}/subtasks/metrics"
            for metric in self._get(place):
                name = metric["id"]
                if name.startswith(SOURCE) and name.endswith(".numRecordsOut"):
                    yield f"{place}?get={name}&agg=sum"

    def _value(self, metric: str) -> int:
        (found,) = self._get(metric)
        return int(found["sum"])

    def _get(self, path: str) -> Any:
        with urlopen(self._url + path, timeout=5) as answer:
            return json.load(answer)


if __name__ == "__main__":
    main()
