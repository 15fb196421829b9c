"""An application whose sink comes from another package. As an artifact, it imports nothing from the tests."""

from __future__ import annotations

import one_file
from pydantic import BaseModel

from epochal import Pipeline
from epochal.connectors import files


class Parameters(BaseModel):
    input: str
    output: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("third-party")
    source = files.source(parameters.input, format="json", schema="word string", max_files=1)
    counts = pipeline.read("words", source).key_by("word").aggregate("counts", count="count(*)")
    counts.write("counts", one_file.sink(parameters.output))
    return pipeline
