"""Word counts of windows of time, as in section 6.1 of the SDG paper.

A line comes with its own time, in milliseconds: a program reads no clock.
"""

from __future__ import annotations

from epochal.programs import Counter, Partitioned, entry, program

WINDOW_MILLISECONDS = 1000


@program
class WordCount:
    """How often each word has come in each window of a second."""

    counts: Partitioned[Counter[str]]

    @entry
    def add_line(self, line: str, at: int) -> int:
        """Count the words of a line; returns how many there are."""
        start = at - at % WINDOW_MILLISECONDS
        words = line.lower().split()
        for word in words:
            self.counts.add(self.in_window(word, start))
        return len(words)

    @entry
    def count(self, word: str, start: int) -> int:
        """How often a word has come in the window that begins then."""
        key: str = self.in_window(word, start)
        return self.counts.count(key)

    def in_window(self, word: str, start: int) -> str:
        """The key of a word in a window."""
        return f"{start} {word}"
