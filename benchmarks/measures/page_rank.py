"""PageRank of 100,000 links (``examples/loops``): seconds of a hop until the ranks converge, compared with networkx.

The graph is random (Barabási and Albert), in which pages with many links are linked more often. Each edge is a link in
both directions, so that every page has links.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median

import networkx

from benchmarks import engine
from benchmarks.result import Result, at_most, number
from epochal.snapshots.discovery import discover
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from examples.loops.page_rank import DAMPING, Parameters, build

PAGES, LINKS_OF_A_NEW_PAGE = 10_005, 5
MOST_SECONDS, MOST_OFF = 1.0, 1e-3
"""Maximum seconds of a hop; maximum difference of a rank, where all ranks add up to the number of pages."""


def run(folder: Path) -> list[Result]:
    graph = networkx.barabasi_albert_graph(PAGES, LINKS_OF_A_NEW_PAGE, seed=1).to_directed()
    (folder / "links").mkdir()
    _write(folder / "links" / "0.json", graph)
    settings = engine.configuration(folder)
    with engine.engine_session(settings) as spark:
        pipeline = build(Parameters(input=str(folder / "links")))
        epochs = engine.run_available(pipeline, spark, folder / "run", settings)
    decided = [epoch.prepared_at for epoch in epochs if epoch.prepared_at is not None]
    hops = [(after - before).total_seconds() for before, after in pairwise(decided)]
    messages = [epoch.rows_in or 0 for epoch in epochs]
    off = _off(folder / "run" / "store", graph)
    what = f"{graph.number_of_edges():,} links of {len(graph):,} pages, a random graph (Barabási-Albert)"
    how = f"{what}; {len(hops)} hops, {max(messages):,} messages in the largest, {max(hops):.2f} s the longest"
    return [
        at_most("PageRank, a hop until the ranks have converged: mean", sum(hops) / len(hops), MOST_SECONDS, "s", how),
        number("PageRank, a hop: median", median(hops), "s"),
        at_most("PageRank, rank furthest from networkx", off, MOST_OFF, "", "of ranks that are 1 on average", digits=7),
    ]


def _write(path: Path, graph: networkx.DiGraph) -> None:
    path.write_text("".join(f'{{"page": {page}, "link": {link}}}\n' for page, link in graph.edges))


def _off(folder: Path, graph: networkx.DiGraph) -> float:
    store = SnapshotStore(str(folder))
    newest = max(discover(store).roots, key=lambda reference: reference.epoch)
    rows = SnapshotReader(store, newest).read("pages.ranks")
    found: dict[int, float] = dict(zip(rows["page"].to_pylist(), rows["rank"].to_pylist(), strict=True))
    shares: dict[int, float] = networkx.pagerank(graph, alpha=DAMPING, weight=None, tol=1e-12, max_iter=1000)
    if found.keys() != shares.keys():
        raise RuntimeError(f"{len(found):,} pages have a rank, of {len(shares):,}")
    return max(abs(found[page] - share * len(graph)) for page, share in shares.items())
