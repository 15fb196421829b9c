"""Generated parts of the documentation; ``python -m tests.kit.written`` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.service.end_to_end.blocks import ROOT


@dataclass(frozen=True)
class WrittenPart:
    """The part of a page between the marks of a name."""

    page: Path
    name: str

    def read(self) -> str:
        """Return the current text of the part."""
        return self._split()[1]

    def write(self, text: str) -> None:
        """Replace the part with ``text``."""
        head, _, tail = self._split()
        self.page.write_text(head + text + tail)

    def _split(self) -> tuple[str, str, str]:
        begin = f"<!-- {self.name}: written by `python -m tests.kit.written` -->\n"
        end = f"<!-- end of {self.name} -->"
        head, _, rest = self.page.read_text().partition(begin)
        part, found, tail = rest.partition(end)
        assert found, f"{self.page} lacks the marks of {self.name!r}"
        return head + begin, part, end + tail


OF_PROGRAMS = WrittenPart(ROOT / "docs/reference/programs.md", "refusals")
FED_WRONGLY = WrittenPart(ROOT / "docs/reference/programs.md", "fed wrongly")
OF_STANDING_QUERIES = WrittenPart(ROOT / "docs/reference/standing-queries.md", "refusals")


def main() -> None:
    """Write all parts."""
    from epochal.cli.local_spark import local_spark
    from epochal.contracts.configuration import Configuration
    from epochal.programs import rules as of_programs
    from tests.kit import feed_errors, refused_queries

    OF_PROGRAMS.write(of_programs.page())
    OF_STANDING_QUERIES.write(refused_queries.page())
    with local_spark("fed-wrongly", Configuration(master="local[1]")) as spark:
        FED_WRONGLY.write(feed_errors.page(feed_errors.refusals(spark)))


if __name__ == "__main__":
    main()
