"""Word counts in time windows, as in section 6.1 of the SDG paper.

A line has its own time in milliseconds, because programs read no clock.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from epochal import Pipeline
from epochal.connectors import files
from epochal.programs import Counter, Partitioned, entry, program


@program
class WordCount:
    """Counts each word in each time window. Windows of one size do not overlap; each call specifies the size in
    milliseconds."""

    counts: Partitioned[Counter[str]]

    @entry
    def add_line(self, line: str, at: int, window: int) -> int:
        """Count the words of a line. Returns their number."""
        start = at - at % window
        words = line.lower().split()
        for word in words:
            self.counts.add(self.in_window(word, start, window))
        return len(words)

    @entry
    def count(self, word: str, start: int, window: int) -> int:
        """Return the count of a word in the window that begins at ``start``."""
        key: str = self.in_window(word, start, window)
        return self.counts.count(key)

    def in_window(self, word: str, start: int, window: int) -> str:
        """Return the key of a word in a window."""
        return f"{window} {start} {word}"


class Parameters(BaseModel):
    input: str = Field(description="a folder with folders of calls: lines (JSON: line, at), asked (word, start, at)")
    output: str = Field(description="a folder for the requested counts")
    window: int = Field(default=1000, gt=0, description="the size of a window, in milliseconds")


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("word-count")
    words = pipeline.program(WordCount)
    for name, source, columns in (
        ("add_line", "lines", "line string, at bigint"),
        ("count", "asked", "word string, start bigint, at bigint"),
    ):
        calls = files.source(f"{parameters.input}/{source}/*.json", format="json", schema=columns)
        stream = pipeline.read(source, calls).with_columns(window=f"CAST({parameters.window} AS BIGINT)")
        words.feed(name, stream, order_by="at", keep=("word", "start") if name == "count" else ())
    words.results("count").write("counts", files.sink(parameters.output, format="json"))
    return pipeline
