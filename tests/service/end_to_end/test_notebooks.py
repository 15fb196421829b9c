"""docs/how-to/notebooks.md as a notebook: executed by a kernel, against a control plane with a running application."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from epochal.testing.servers.control_plane import ControlPlane, control_plane
from tests.kit.waiting import eventually
from tests.service.end_to_end.blocks import blocks_of
from tests.unit.test_drawing_pictures import checked

BLOCKS = blocks_of("docs/how-to/notebooks.md", "python")
PICTURES = ("pipeline", "application.graph()", "application.lineage()", "application.epochs.list(100)")


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlPlane]:
    """A control plane whose application is the page's pipeline and has committed epochs."""
    file = tmp_path / "orders.py"
    file.write_text(BLOCKS[0].text.replace('files.sink("customers"', f'files.sink("{tmp_path / "customers"}"'))
    with control_plane(tmp_path / "plane") as plane, plane.client() as client:
        client.applications.create("orders", client.artifacts.upload(file).sha256)
        application = client.application("orders")
        eventually(lambda: (head := application.get().head) is not None and head.epoch >= 3, 180)
        monkeypatch.setenv("EPOCHAL_URL", plane.url)
        monkeypatch.setenv("EPOCHAL_TOKEN", (plane.home / "admin.token").read_text().strip())
        yield plane


def executed(cells: list[str], folder: Path) -> list[dict[str, Any]]:
    """Execute the cells in a kernel, and return the shown representations of the last line of each cell."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return [
        next(dict(output["data"]) for output in cell["outputs"] if output["output_type"] == "execute_result")
        for cell in notebook["cells"]
    ]


@pytest.mark.slow
@pytest.mark.alternating(2)
def test_the_cells_of_the_page_show_pictures_and_tables(orders: ControlPlane, tmp_path: Path) -> None:
    shown = executed([block.text for block in BLOCKS], tmp_path)
    for block, data in zip(BLOCKS, shown, strict=True):
        root = checked(data["text/html"])
        last = block.text.splitlines()[-1]
        found = root.iter("{http://www.w3.org/2000/svg}svg" if last in PICTURES else "table")
        assert next(iter(found), None) is not None, last
    graph, lineage, epochs = (data["text/html"] for data in shown[1:4])
    assert "spending" in graph and "rows/s" in graph
    assert "orders" in lineage and "rows in" in lineage
    assert "Duration of epochs" in epochs
    assert "customer" in shown[5]["text/html"] and ">7</th>" in shown[6]["text/html"]
    assert "<svg" in shown[7]["text/html"] or "epoch" in shown[7]["text/html"]


def test_a_pipeline_is_shown_without_spark(tmp_path: Path) -> None:
    lines = (
        "import sys\n'pyspark.java_gateway' in sys.modules and __import__('pyspark').SparkContext._gateway is not None"
    )
    picture, started = executed([BLOCKS[0].text, lines], tmp_path)
    assert "spending" in "".join(checked(picture["text/html"]).itertext())
    assert started["text/plain"] == "False"
