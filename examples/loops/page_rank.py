"""PageRank of a growing graph, updated incrementally.

A page sends its links shares of its rank. When its rank or its links change, it sends them the differences, unless they
are below ``TOLERANCE``. The loop is aligned: new links wait until the ranks of earlier ones have converged. If every
page has a link, ranks add up to the number of pages; the share of a page without links is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, Field

from epochal import BatchFunction, Pipeline, ValueState
from epochal.connectors import files

DAMPING = 0.85
TOLERANCE = 1e-6
RANK = pa.schema(
    [("page", pa.int64()), ("rank", pa.float64()), ("told", pa.float64()), ("links", pa.list_(pa.int64()))]
)


class Parameters(BaseModel):
    input: str = Field(description="a folder of links: JSON, page and link")


class PageRank(BatchFunction):
    """Input rows have ``link``, the target of a new link, or ``share``, an increase of the page's rank.

    State of a page: its rank, the part of it already sent to its links (``told``), and the links.
    """

    ranks = ValueState("rank double, told double, links array<bigint>")
    output = "page bigint, link bigint, share double"

    def process_batch(self, batch: pa.Table, states: Mapping[str, Any], ctx: Any) -> pa.Table:
        # Sorted, because sums of doubles depend on the order.
        batch = batch.select(["page", "link", "share"]).sort_by(
            [("page", "ascending"), ("link", "ascending"), ("share", "ascending")]
        )
        arrived = batch.group_by("page", use_threads=False).aggregate([("share", "sum"), ("link", "count")])
        found, before = states["ranks"].get(arrived.select(["page"]))
        rank = (
            np.where(found, pc.fill_null(before["rank"], 0.0), 1 - DAMPING)
            + pc.fill_null(arrived["share_sum"], 0.0).to_numpy()
        )
        told = np.asarray(pc.fill_null(before["told"], 0.0))
        old, new = _links(before["links"]), batch.filter(batch["link"].is_valid())
        page_of_new = np.asarray(pc.index_in(new["page"], arrived["page"].combine_chunks()))
        count_before = np.bincount(old[0], minlength=len(rank))
        count = count_before + np.bincount(page_of_new, minlength=len(rank))

        sends = (count > count_before) | ((np.abs(rank - told) > TOLERANCE) & (count > 0))
        with np.errstate(divide="ignore", invalid="ignore"):
            each_new = np.where(sends, DAMPING * rank / count, 0.0)
            each_old = each_new - np.where(count_before > 0, DAMPING * told / count_before, 0.0)
        to_old = sends[old[0]]
        pages = np.concatenate([old[1][to_old], new["link"].to_numpy()])
        shares = np.concatenate([each_old[old[0]][to_old], each_new[page_of_new]])

        owner = np.concatenate([old[0], page_of_new])
        order = np.argsort(owner, kind="stable")
        links = pa.ListArray.from_arrays(
            pa.array(np.concatenate([[0], np.cumsum(count)]), pa.int32()),
            pa.array(np.concatenate([old[1], new["link"].to_numpy()])[order], pa.int64()),
        )
        kept = [arrived["page"], rank, np.where(sends, rank, told), links]
        states["ranks"].put(
            pa.Table.from_arrays(
                [pa.chunked_array([each]) if not isinstance(each, pa.ChunkedArray) else each for each in kept],
                schema=RANK,
            )
        )
        return pa.table({"page": pages, "link": pa.nulls(len(pages), pa.int64()), "share": shares})


def _links(lists: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return for each link the position of its page, and its target."""
    lists = lists.combine_chunks()
    return np.asarray(pc.list_parent_indices(lists)), np.asarray(pc.list_flatten(lists))


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("page-rank")
    links = pipeline.read(
        "links", files.source(f"{parameters.input}/*.json", format="json", schema="page bigint, link bigint")
    )
    shares = pipeline.feedback("shares", "page bigint, link bigint, share double", aligned=True)
    told = (
        links.select("*", "CAST(NULL AS DOUBLE) AS share")
        .union(shares)
        .key_by("page")
        .process_batch(PageRank, name="pages")
    )
    shares.close(told)
    return pipeline
