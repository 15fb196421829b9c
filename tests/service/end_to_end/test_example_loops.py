"""Examples of loops: the results of their functions, and the demo that kills each of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from epochal.pipeline.kinds import check_kinds
from examples.loops import components, k_means, page_rank
from tests.service.end_to_end.blocks import ROOT

ROWS = pa.schema([("page", pa.int64()), ("link", pa.int64()), ("share", pa.float64())])


class InMemory:
    """The part of the state interface that the function uses."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}

    def get(self, keys: pa.Table) -> tuple[Any, pa.Table]:
        pages = keys["page"].to_pylist()
        nothing = dict.fromkeys(page_rank.RANK.names)
        rows = [self.rows.get(page, nothing) for page in pages]
        values = pa.schema([field for field in page_rank.RANK if field.name != "page"])
        return np.array([page in self.rows for page in pages], bool), pa.Table.from_pylist(rows, values)

    def put(self, rows: pa.Table) -> None:
        self.rows.update({row["page"]: row for row in rows.to_pylist()})


def test_ranks_follow_new_links() -> None:
    """Links that are added after the ranks have settled give the same ranks as all links together, solved as
    equations."""
    from examples.loops import demo  # loads scikit-learn, which only the worker of this test needs

    links = list(demo.CLUB.to_directed().edges)
    state, function = InMemory(), page_rank.PageRank()
    for begin, end in ((0, 100), (100, len(links))):
        rows = pa.Table.from_pylist([{"page": page, "link": link} for page, link in links[begin:end]], ROWS)
        for _ in range(200):
            rows = function.process_batch(rows, {"ranks": state}, None)
            if not rows.num_rows:
                break
        assert not rows.num_rows, "the ranks must settle"
    found = {page: row["rank"] for page, row in state.rows.items()}
    expected = demo.ranks(demo.CLUB.to_directed())
    assert found.keys() == expected.keys()
    assert max(abs(found[page] - rank) for page, rank in expected.items()) < 1e-4


def test_pipelines_of_the_examples_are_valid() -> None:
    graphs = [
        components.build(components.Parameters(input="in", output="out")).graph(),
        page_rank.build(page_rank.Parameters(input="in")).graph(),
        k_means.build(k_means.Parameters(input="in", output="out")).graph(),
    ]
    for graph in graphs:
        check_kinds(graph)
    assert [loop.feedback.aligned for graph in graphs for loop in graph.loops] == [False, True, True]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_demo_results_equal_those_of_other_libraries() -> None:
    command = [sys.executable, "-m", "examples.loops.demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=850)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("; equal to what") == 3
