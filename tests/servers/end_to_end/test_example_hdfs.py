"""The HDFS example ends as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.testing.drivers import SparkJvm
from epochal.testing.servers.hdfs import HdfsServer
from tests.service.end_to_end.blocks import blocks_of


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.server
def test_the_days_equal_pandas_after_driver_and_name_node_were_killed(
    hdfs_server: HdfsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples.hdfs import demo  # the flights take seconds to load, also where this test is not chosen

    with SparkJvm() as jvm:
        assert demo.run(hdfs_server, tmp_path, jvm) == 0
    output = capsys.readouterr().out
    assert "the driver and the NameNode were killed" in output
    assert "equal to what pandas computes" in output


def test_the_pages_python_runs() -> None:
    names: dict[str, object] = {}
    for block in blocks_of("docs/reference/sinks/hdfs.md", "python"):
        exec(block.code, names)  # type: ignore[call-overload]
    kinds = {name: names[name].kind for name in ("orders", "customers", "totals", "secured")}  # type: ignore[attr-defined]
    assert set(kinds.values()) == {"hdfs"}
