"""Epochs cut by punctuation records: every slice ends with one, and with the same one in all punctuated sources."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal import Pipeline
from epochal.connectors import console, dbms, files, generator, kafka
from epochal.connectors.files import FilesSource
from epochal.connectors.generator import GeneratorSource
from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.engine.epoch_input import punctuated_together
from epochal.errors import OptionError
from tests.kit.lives import Life, Step

TIGHT = SliceLimits(max_records=1)


def all_slices(source: Source, limits: SliceLimits = TIGHT) -> list[Slice]:
    """Plan and accept slices until the source returns none."""
    found: list[Slice] = []
    while (slice := source.plan(limits)) is not None:
        source.accept(slice)
        found.append(slice)
    return found


def test_a_generator_ends_slices_at_the_punctuation_and_not_at_the_limit() -> None:
    source = GeneratorSource({"n": "id"}, bound=10, punctuation=4)
    assert source.punctuated
    assert [(slice.start["row"], slice.end["row"]) for slice in all_slices(source)] == [(0, 4), (4, 8), (8, 10)]
    assert source.ended


def test_a_generator_with_a_rate_waits_for_the_punctuation() -> None:
    now = 0.0
    source = GeneratorSource({"n": "id"}, rate=1, clock=lambda: now, punctuation=4)
    assert source.plan(TIGHT) is None
    now = 3.9
    assert source.plan(TIGHT) is None
    now = 9.0
    assert [slice.rows for slice in all_slices(source)] == [4, 4]
    assert source.backlog().records == 1


def written(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.write_text("{}\n")
        number = len(list(folder.iterdir()))
        os.utime(path, ns=(number * 10**9, number * 10**9))


def files_source(folder: Path, **options: Any) -> FilesSource:
    definition = files.source(str(folder), "json", "n long", punctuation="*.end.json", **options)
    source = definition.make()
    assert isinstance(source, FilesSource)
    source.restore(None, [])
    return source


def names_of(slices: list[Slice]) -> list[list[str]]:
    return [[Path(record["path"]).name for record in slice.detail["files"]] for slice in slices]


def test_a_file_ends_a_slice_by_its_name(tmp_path: Path) -> None:
    written(tmp_path, "a.json", "b.json", "1.end.json", "c.json")
    source = files_source(tmp_path)
    assert source.punctuated
    assert names_of(all_slices(source)) == [["a.json", "b.json", "1.end.json"]]
    assert source.backlog().files == 1
    written(tmp_path, "2.end.json", "3.end.json")
    assert names_of(all_slices(source)) == [["c.json", "2.end.json"], ["3.end.json"]]


def test_the_last_slice_of_a_bounded_source_needs_no_punctuation(tmp_path: Path) -> None:
    written(tmp_path, "a.json", "1.end.json", "b.json", "c.json")
    source = files_source(tmp_path, bounded=True)
    source.limit_to_bounds()
    assert names_of(all_slices(source)) == [["a.json", "1.end.json"], ["b.json", "c.json"]]
    assert source.ended


def test_files_after_the_last_punctuation_wait_for_the_next_run(tmp_path: Path) -> None:
    """In a run over the input that is available now."""
    written(tmp_path, "a.json", "1.end.json", "b.json")
    source = files_source(tmp_path)
    source.limit_to_available()
    assert names_of(all_slices(source)) == [["a.json", "1.end.json"]]
    assert source.ended


def test_all_punctuated_sources_join_an_epoch_or_none() -> None:
    left, right = (GeneratorSource({"n": "id"}, bound=8, punctuation=4) for _ in range(2))
    other = GeneratorSource({"n": "id"}, bound=8)
    sources: dict[str, Source] = {"left": left, "right": right, "other": other}
    slices = {name: slice for name, source in sources.items() if (slice := source.plan(TIGHT))}
    assert punctuated_together(sources, slices) == slices
    del slices["right"]
    assert punctuated_together(sources, slices) == {"other": slices["other"]}
    right.accept(Slice(start={"row": 0}, end={"row": 8}))
    assert punctuated_together(sources, slices) == slices, "the epoch does not wait for a source that has ended"


@pytest.mark.claim("Thesis, 3.4.3.1")
def test_an_epoch_contains_the_same_punctuation_of_all_sources() -> None:
    pipeline, columns = Pipeline("punctuated"), pa.schema([("n", pa.int64())])
    names = ("left", "right")
    for name in names:
        pipeline.read(name, generator.source({"n": "id"})).write(f"{name}_out", console.sink())
    with Life(pipeline, dict.fromkeys(names, columns)) as life:
        for rows in life.rows.values():
            rows.punctuated = rows.awaited = True
        life.epoch(Step(), left=[{"n": 1}])
        assert life.manifests == []
        life.epoch(Step("abort"), left=[{"n": 3}], right=[{"n": 2}])
        life.epoch(Step("restart"))
        assert [sorted(manifest.slices) for manifest in life.manifests] == [["left", "right"]]
        life.epoch(Step(), right=[{"n": 4}])
        shown = [[row["n"] for row in rows] for name in names for rows in life.shown(f"{name}_out")]
        assert shown == [[1], [3], [2], [4]]


def test_options_that_conflict_with_punctuation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="max_files and punctuation exclude each other"):
        files.source(str(tmp_path), "json", "n long", max_files=1, punctuation="*.end")
    with pytest.raises(OptionError, match=r"punctuation is '_SUCCESS'; it must be a pattern of file names"):
        files.source(str(tmp_path), "json", "n long", punctuation="_SUCCESS")
    with pytest.raises(OptionError, match="punctuation is 0; it must be an integer above 0"):
        generator.source({"n": "id"}, punctuation=0)
    with pytest.raises(OptionError, match="punctuation must be an SQL condition"):
        dbms.source("sqlite:///in.sqlite", "rows", "id", punctuation=" ")
    with pytest.raises(OptionError, match="punctuation is the key of the records that end an epoch"):
        kafka.source("localhost:9092", "topic", "string", punctuation="")
