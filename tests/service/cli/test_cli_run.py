"""``epochal check`` and ``run`` on local Spark, without a control plane."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.testing.servers.control_plane import COMMAND

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.cli.conftest import Answer, CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

COUNTS = """
from epochal import KeyedProcess, Pipeline, ValueState
from epochal.connectors import console, generator


class Count(KeyedProcess):
    seen = ValueState("n bigint")
    output = "sensor string, n bigint"

    def process(self, key, rows, ctx):
        print("in a task")
        BODY
        n = (self.seen.get() or 0) + len(rows)
        self.seen.set(n)
        yield key.sensor, n


pipeline = Pipeline("counts")
rows = pipeline.read("rows", generator.source({"sensor": "concat('s', id % 3)"}, RATE))
rows.key_by("sensor").process(Count, name="count").write("look", console.sink())
"""

GROWING = """
totals = rows.key_by("sensor").aggregate("totals", n="count(*)", sensors="count(DISTINCT sensor)")
totals.where("n > 3").write("totals", console.sink())
"""
OVER_UPDATES = 'totals.key_by("n").aggregate("histogram", sensors="count(*)")'


def pipeline(folder: Path, rate: str = "bound=300", body: str = "pass") -> Path:
    file = folder / "counts.py"
    file.write_text(COUNTS.replace("RATE", rate).replace("BODY", body))
    return file


def test_check_prints_the_graph_or_the_first_error(alone: CommandLine, tmp_path: Path) -> None:
    file = pipeline(tmp_path)
    plain = file.read_text()
    file.write_text(plain + GROWING)
    shown = alone.spawn("check", file)
    assert shown.code == 0, shown.stderr
    for part in ["rows", "generator source", "count", "process by sensor", "state count.seen", "look", "console sink"]:
        assert part in shown.output
    for part in ["seed=0  append", "aggregate by sensor  upsert(sensor)", "where(n > 3)  updates"]:
        assert part in shown.output
    assert shown.stderr.startswith("warning: Operator 'totals', column 'sensors'")
    assert [line.split(" keeps ")[0] for line in shown.stderr.splitlines() if line.startswith("note: ")] == [
        "note: Operator 'count'",
        "note: Operator 'totals'",
    ]
    assert shown.stderr.endswith("counts.py is valid.\n")
    file.write_text(plain.replace('key_by("sensor")', 'key_by("senor")'))
    wrong = alone.spawn("check", file, "--json")
    assert wrong.code == 1
    assert "'count'" in wrong.document["error"]["message"]
    assert "sensor" in wrong.document["error"]["message"]
    assert len(wrong.stderr.splitlines()) == 1
    file.write_text(plain + GROWING + OVER_UPDATES)
    refused = alone.spawn("check", file, "--json")
    assert refused.code == 1
    assert "Operator 'histogram' accepts append, but operator 'totals'" in refused.document["error"]["message"]


def test_check_names_the_line_of_an_error(alone: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("x = (\n")
    answer = alone("check", file)
    assert answer.code == 1
    assert "broken.py, line 1" in answer.stderr
    file.write_text("x = 1\n")
    assert "defines no pipeline" in alone("check", file).stderr
    assert "missing.py" in alone("check", tmp_path / "missing.py").stderr


def test_run_ends_when_its_bounded_source_ends(alone: CommandLine, tmp_path: Path) -> None:
    answer = alone.spawn("run", pipeline(tmp_path), "--set", "max_records_per_epoch=100", "--set", "parallelism=1")
    assert answer.code == 0, answer.stderr
    assert "look, epoch 3" in answer.output
    assert "Done after 3 epochs, 300 rows in." in answer.output
    assert "● epoch 2  100 rows in, 3 out, 3 changed" in answer.stderr
    assert "in a task" in answer.stderr
    assert "WARN" not in answer.stderr


def test_run_names_the_option_that_aborts_a_refused_transaction(alone: CommandLine, tmp_path: Path) -> None:
    database, file = tmp_path / "out.sqlite", tmp_path / "orders.py"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE results (v bigint CHECK (v <> 15))")
    file.write_text(
        "from epochal import Pipeline\nfrom epochal.connectors import dbms, files, generator\n"
        'pipeline = Pipeline("orders")\nrows = pipeline.read("rows", generator.source({"v": "id"}, bound=60))\n'
        f'rows.select("v").write("bad", dbms.sink("sqlite:///{database}", "results"))\n'
        f'rows.write("good", files.sink("{tmp_path / "out"}"))\n'
    )
    arguments: list[str | Path] = ["run", file, "--directory", tmp_path / "run", "--set", "max_records_per_epoch=10"]
    arguments += ["--set", "max_uncommitted_epochs=2"]
    refused = alone.spawn(*arguments)
    assert refused.code == 1, refused.stderr
    for part in ("row v=15", "SQLSTATE 23000", f"--directory {tmp_path / 'run'} --abort-transaction bad:2`"):
        assert part in " ".join(refused.stderr.split())
    assert len(list((tmp_path / "out").glob("epoch=*"))) == 6
    resolved = alone.spawn(*arguments, "--abort-transaction", "bad:2")
    assert resolved.code == 0, resolved.stderr
    with sqlite3.connect(database) as connection:
        assert sorted(row[0] for row in connection.execute("SELECT v FROM results")) == [*range(10), *range(20, 60)]


def test_run_continues_a_changed_aggregate_only_if_accepted(alone: CommandLine, tmp_path: Path) -> None:
    database, file = tmp_path / "out.sqlite", tmp_path / "totals.py"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE results (k text PRIMARY KEY, total bigint, mean double)")
    values = [range(100), range(100, 200), range(200, 300)]  # by epoch
    arguments: list[str | Path] = ["run", file, "--directory", tmp_path / "run", "--epochs", "1"]
    arguments += ["--set", "max_records_per_epoch=100"]

    def run(aggregates: str, *options: str) -> Answer:
        file.write_text(
            "from epochal import Pipeline\nfrom epochal.connectors import dbms, generator\n"
            'pipeline = Pipeline("totals")\n'
            """rows = pipeline.read("rows", generator.source({"k": "concat('s', id % 2)", "v": "id"}, bound=300))\n"""
            f'rows.key_by("k").aggregate("totals", {aggregates})'
            f'.write("out", dbms.sink("sqlite:///{database}", "results", keys=["k"]))\n'
        )
        return alone.spawn(*arguments, *options)

    def written() -> dict[str, tuple[int, float | None]]:
        with sqlite3.connect(database) as connection:
            return {k: (total, mean) for k, total, mean in connection.execute("SELECT k, total, mean FROM results")}

    def of_keys(value: Callable[[int], tuple[int, float | None]]) -> dict[str, tuple[int, float | None]]:
        return {f"s{number}": value(number) for number in range(2)}

    assert run('total="sum(v)"').code == 0
    first = of_keys(lambda key: (sum(values[0][key::2]), None))
    assert written() == first
    edited = 'total="sum(v * 10)", mean="avg(v)"'
    refused = run(edited)
    assert refused.code == 1
    for option in ("--accept-changed totals.total", "--accept-partial totals.mean"):
        assert option in " ".join(refused.stderr.split())
    assert run(edited, "--accept-changed", "totals.total").code == 1
    assert written() == first

    accepted = run(edited, "--accept-changed", "totals.total", "--accept-partial", "totals.mean")
    assert accepted.code == 0, accepted.stderr
    assert written() == of_keys(
        lambda key: (sum(values[0][key::2]) + 10 * sum(values[1][key::2]), sum(values[1][key::2]) / 50)
    )
    again = run('total="sum(v * 100)", mean="avg(v)"')
    assert again.code == 1 and "--accept-changed totals.total" in " ".join(again.stderr.split())
    assert run('mean="mean(v)", total="sum((v * 10))"').code == 0  # an equivalent expression
    later = [value for values_of in values[1:] for value in values_of]
    assert written() == of_keys(
        lambda key: (sum(values[0][key::2]) + 10 * sum(later[key::2]), sum(later[key::2]) / len(later[key::2]))
    )


def test_run_continues_from_its_directory(alone: CommandLine, tmp_path: Path) -> None:
    arguments: list[str | Path] = ["run", pipeline(tmp_path), "--directory", tmp_path / "run"]
    arguments += ["--epochs", "1", "--set", "max_records_per_epoch=100", "--json"]
    first, second = alone.spawn(*arguments), alone.spawn(*arguments)
    assert first.code == second.code == 0, first.stderr + second.stderr
    assert [epoch["epoch"] for epoch in first.document["epochs"]] == [1]
    assert [epoch["epoch"] for epoch in second.document["epochs"]] == [2]
    assert second.document["epochs"][0]["rows_in"] == 100
    assert "200" not in first.stderr
    assert "s0      67" in second.stderr.replace("│", " ")


def test_an_exception_is_shown_with_lines_of_the_pipeline_only(alone: CommandLine, tmp_path: Path) -> None:
    file = pipeline(tmp_path, body="raise ValueError('no such sensor')")
    answer = alone.spawn("run", file, "--set", "tolerable_failed_epochs=0")
    assert answer.code == 1
    assert "Operator 'count'" in answer.stderr
    assert "ValueError: no such sensor" in answer.stderr
    assert f'{file}", line ' in answer.stderr
    assert "epochal/engine" not in answer.stderr
    assert "pyspark" not in answer.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_process_group_ends_a_run_gracefully(
    alone: CommandLine, tmp_path: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [COMMAND, "run", pipeline(tmp_path, rate="rate=100"), "--json"],
        env=alone.environment | {"PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        while "in a task" not in process.stderr.readline():
            assert process.poll() is None
        # A terminal and `timeout` signal the whole group.
        os.killpg(process.pid, number)
        output, stderr = process.communicate()
        assert process.returncode == 0, stderr
        outcome = json.loads(output)
        assert outcome["interrupted"]
        assert len(outcome["epochs"]) >= 1
        assert "Traceback" not in stderr and "error" not in stderr
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
