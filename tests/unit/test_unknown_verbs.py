"""Unknown attributes of streams, such as names of other streaming systems: the error names the verb to use."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from epochal import Pipeline, tumbling
from epochal.connectors import generator
from epochal.errors import PipelineError
from epochal.pipeline.definitions import TableDefinition
from epochal.pipeline.other_names import CONNECTED, KEYED, STREAM, TABLE, WINDOWED, UnknownVerb


def kinds() -> dict[str, tuple[Any, Mapping[str, str]]]:
    pipeline = Pipeline("names")
    stream = pipeline.read("rows", generator.source({"k": "cast(id AS string)", "at": "timestamp_micros(id)"}))
    timed = stream.with_watermark("at", "1 second")
    connected = stream.connect(stream.where("k = '1'"), broadcast=True, order_by="at")
    return {
        "stream": (stream, STREAM),
        "table": (pipeline.table("t", TableDefinition("made", lambda spark: spark.range(1).toDF("k"))), TABLE),
        "keyed": (timed.key_by("k"), KEYED),
        "windowed": (timed.key_by("k").window(tumbling("1 minute")), WINDOWED),
        "connected": (connected, CONNECTED),
    }


@pytest.mark.parametrize("kind", kinds())
def test_every_foreign_name_leads_to_a_verb_and_hides_none(kind: str) -> None:
    stream, names = kinds()[kind]
    own = {name for name in dir(type(stream)) if not name.startswith("_")}
    assert not own & set(names)
    for name, instead in names.items():
        with pytest.raises(UnknownVerb) as unknown:
            getattr(stream, name)
        assert unknown.value.message == f"{type(stream).__name__} has no {name}. Use {instead}."
        assert not hasattr(stream, name)


@pytest.mark.parametrize(
    ("kind", "name", "verb"),
    [
        ("stream", "groupBy", "key_by(..)"),
        ("stream", "groupby", "key_by(..)"),
        ("stream", "withColumn", "with_column(name, column)"),
        ("stream", "writeStream", "write(name, sink)"),
        ("stream", "agg", "key_by(..).aggregate("),
        ("table", "groupBy", "transform("),
        ("keyed", "filter", "before key_by(..)"),
        ("keyed", "agg", "aggregate("),
        ("windowed", "applyInPandas", "process(..)"),
        ("stream", "wher", "Did you mean 'where'?"),
        ("keyed", "aggregat", "Did you mean 'aggregate'?"),
        ("stream", "zzz", "docs/how-to/write-a-pipeline.md lists the verbs of a Stream"),
    ],
)
def test_a_missing_attribute_names_the_verb(kind: str, name: str, verb: str) -> None:
    with pytest.raises(PipelineError) as unknown:
        getattr(kinds()[kind][0], name)
    assert verb in unknown.value.message and isinstance(unknown.value, AttributeError)


@pytest.mark.parametrize("kind", kinds())
def test_streams_can_be_copied_and_inspected(kind: str) -> None:
    stream = kinds()[kind][0]
    assert type(copy.copy(stream)) is type(stream)
    assert getattr(stream, "_repr_html_", None) is None and getattr(stream, "groupByy", 3) == 3
    with pytest.raises(AttributeError, match="_nothing"):
        stream._nothing  # noqa: B018
    error = pickle.loads(pickle.dumps(UnknownVerb("Stream has no zzz.")))
    assert error.message == "Stream has no zzz."


def test_a_type_checker_still_reports_the_name() -> None:
    pipeline = Pipeline("names")
    stream = pipeline.read("rows", generator.source({"k": "cast(id AS string)"}))
    with pytest.raises(UnknownVerb):
        # Lint reports an unused ignore here if a type checker accepts any attribute.
        stream.groupBy("k")  # type: ignore[attr-defined]
