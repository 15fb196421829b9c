"""docs/theory.md: all of the papers' definitions, algorithms and tables stand there, with what is really there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "theory.md").read_text()
DEFINITIONS = [
    *(f"Definition 3.2.{number}" for number in range(1, 7)),
    *("Definition 3.3.1", "Definition 3.3.2"),
    *(f"Definition 3.4.{number}" for number in range(1, 4)),
    *(f"Specification {number}" for number in (1, 2, 4)),
]
ALGORITHMS = [
    *("ABS, algorithm 1", "ABS, algorithm 2", "SDG, algorithm 1"),
    *(f"Thesis, algorithm {number}" for number in (3, 5, 6, 7)),
]
TABLE_4_1 = ["Local (RocksDB)", "Local (Heap)", "Kafka", "Pravega", "HDFS", "DBMS (non-MVCC)", "DBMS (MVCC)"]
TABLES = ["thesis, table 4.1", "SDG, table 1", *TABLE_4_1]
FIGURES = ["Figure 3.12", "Figure 3.14", "Figure 3.16"]
NAMED = sorted(set(re.findall(r"`((?:epochal|service|tests|examples)/[^`\s]+)`", PAGE)))


def test_everything_of_the_papers_stands_there() -> None:
    rows = {row.partition("|")[0].strip(): row for row in re.findall(r"^\|(.+)\|$", PAGE, re.MULTILINE)}
    for item in [*DEFINITIONS, *ALGORITHMS, *TABLES, *FIGURES]:
        assert item in rows, f"docs/theory.md has no row of {item}"
        assert "`" in rows[item] or "not here" in rows[item] or "module" in rows[item], rows[item]


def test_what_stands_there_exists() -> None:
    assert [name for name in NAMED if not exists(name)] == []


def exists(name: str) -> bool:
    path, _, item = name.partition("::")
    if not item:
        return (ROOT / path).exists()
    return re.search(rf"^\s*(def|class) {item}\b", (ROOT / path).read_text(), re.MULTILINE) is not None


def test_the_page_names_modules_and_tests() -> None:
    assert len([name for name in NAMED if name.startswith("tests/")]) > 20
    assert len([name for name in NAMED if not name.startswith("tests/")]) > 20
