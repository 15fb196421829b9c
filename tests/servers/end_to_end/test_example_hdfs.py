"""The HDFS example and the Python blocks of its documentation page."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.testing.drivers import SparkJvm
from epochal.testing.servers.hdfs import HdfsServer
from tests.service.end_to_end.blocks import blocks_of


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.server
def test_hdfs_example_equals_pandas_after_kills(
    hdfs_server: HdfsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples.hdfs import demo  # takes seconds to import, also when this test is deselected

    with SparkJvm() as jvm:
        assert demo.run(hdfs_server, tmp_path, jvm) == 0
    output = capsys.readouterr().out
    assert "the driver and the NameNode were killed" in output
    assert "equal to what pandas computes" in output


def test_python_blocks_of_the_hdfs_page_run() -> None:
    names: dict[str, object] = {}
    for block in blocks_of("docs/reference/sinks/hdfs.md", "python"):
        exec(block.code, names)  # type: ignore[call-overload]
    kinds = {name: names[name].kind for name in ("orders", "customers", "totals", "secured")}  # type: ignore[attr-defined]
    assert set(kinds.values()) == {"hdfs"}
