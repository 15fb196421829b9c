"""Claims of the documentation have tests that carry them: rows of docs/theory/papers.md and sentences of other
pages."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = "docs/theory/papers.md"
CITED_AT_LEAST = 20
DEFINITIONS = [
    *(f"Thesis, definition 3.2.{number}" for number in range(1, 7)),
    *(f"Thesis, definition 3.3.{number}" for number in range(1, 3)),
    *(f"Thesis, definition 3.4.{number}" for number in range(1, 4)),
    *(f"Thesis, specification {number}" for number in (1, 2, 4)),
]
THEOREMS = [
    *("Thesis, lemma 3.2.1", "Thesis, theorem 3.2.2", "Thesis, lemma 3.2.3"),
    *("Thesis, 3.4.5.1", "Thesis, 3.4.5.2", "Thesis, 3.4.5.3"),
]
ALGORITHMS = [
    *("ABS, algorithm 1", "ABS, algorithm 2", "SDG, algorithm 1"),
    *(f"Thesis, algorithm {number}" for number in (3, 5, 6, 7)),
    *(f"SDG, 4.2, rule {number}" for number in range(1, 6)),
]
BACKENDS = ("Local (RocksDB)", "Local (Heap)", "Kafka", "HDFS", "DBMS (non-MVCC)", "DBMS (MVCC)")
FEATURES = (
    *("programming model", "representation", "large state", "fine-grained updates", "execution"),
    *("low latency", "iteration", "failure recovery"),
)
TABLES = [
    *(f"Thesis, table 4.1, {backend}" for backend in BACKENDS),
    *(f"SDG, table 1, {feature}" for feature in FEATURES),
]
FIGURES = ["Thesis, figure 3.12", "Thesis, figure 3.14", "Thesis, figure 3.16", "SDG, figure 1"]
NOT_REPRODUCED = (
    *("ABS, figure 6", "SDG, figure 10", "SDG, figure 11", "SDG, 4.2, rule 2"),
    *("SDG, table 1, low latency", "SDG, table 1, iteration", "SDG, table 1, large state"),
)


@cache
def page(name: str) -> str:
    return (ROOT / name).read_text()


def cited() -> dict[str, list[str]]:
    """Tests of each row of the page's tables with a column ``test``, by the first cell."""
    found: dict[str, list[str]] = {}
    has_tests = False
    for line in page(PAGE).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            has_tests = False
        elif cells[-1] == "test":
            has_tests = True
        elif has_tests and not cells[0].startswith("---") and "not here" not in cells:
            assert cells[0] not in found, f"two rows of {PAGE} are called {cells[0]!r}"
            found[cells[0]] = re.findall(r"`(tests/[^`]+)`", cells[-1])
    return found


@cache
def marked() -> dict[str, frozenset[str]]:
    """Claims of each test that carries any, by ``path::Class::function``, ``path::function`` or ``path::Class``."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text()
        if "mark.claim" in text:
            for name, claims in _marks(ast.parse(text).body, file.relative_to(ROOT).as_posix()):
                found[name] |= claims
    return {name: frozenset(claims) for name, claims in found.items()}


def _marks(body: list[ast.stmt], inside: str) -> Iterator[tuple[str, set[str]]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{inside}::{node.name}"
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.claim":
                    yield name, {ast.literal_eval(argument) for argument in decorator.args}
            if isinstance(node, ast.ClassDef):
                yield from _marks(node.body, name)


def exists(name: str) -> bool:
    """Return whether the file exists and defines the function or class."""
    path, *items = name.split("::")
    if not (ROOT / path).exists():
        return False
    return all(re.search(rf"^\s*(def|class) {item}\b", page(path), re.MULTILINE) for item in items)


@pytest.mark.parametrize("claim", [*DEFINITIONS, *THEOREMS, *ALGORITHMS, *TABLES, *FIGURES])
def test_every_item_of_the_papers_has_a_row_with_a_test(claim: str) -> None:
    assert cited().get(claim), f"{PAGE} has no row {claim!r} that cites a test"


def test_every_cited_test_carries_its_claim() -> None:
    tests = marked()
    missing = [
        f'{test} must carry @pytest.mark.claim("{claim}")'
        for claim, cites in cited().items()
        for test in cites or [f"(no test of {claim!r})"]
        if claim not in tests.get(test, ())
    ]
    assert missing == []


def test_every_claim_of_a_test_is_in_the_documentation() -> None:
    rows = cited()
    unknown = []
    for test, claims in marked().items():
        for claim in claims:
            named, _, sentence = claim.partition(": ")
            made = test in rows[claim] if claim in rows else named.endswith(".md") and contains(named, sentence)
            if not made:
                unknown.append(f"{test}: {claim}")
    assert unknown == []


def contains(name: str, sentence: str) -> bool:
    """Return whether the page contains the sentence, with any line breaks."""
    return " ".join(sentence.split()) in " ".join(page(name).split())


def test_modules_and_tests_named_by_the_page_exist() -> None:
    named = sorted(set(re.findall(r"`((?:epochal|service|tests|examples)/[^`\s]+)`", page(PAGE))))
    assert [name for name in named if not exists(name)] == []
    assert sum(name.startswith("tests/") for name in named) > CITED_AT_LEAST
    assert sum(not name.startswith("tests/") for name in named) > CITED_AT_LEAST


@pytest.mark.parametrize("item", NOT_REPRODUCED)
def test_results_that_are_not_reproduced_are_listed_with_their_reason(item: str) -> None:
    section = page(PAGE).partition("\n## Not reproduced\n")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    (found,) = [row for row in rows if row[0].startswith(item)]
    _, result, ours, reason, _ = found
    assert result and ours and reason


def test_measures_named_by_the_page_are_in_the_results() -> None:
    section = page(PAGE).partition("\n## Not reproduced\n")[2]
    named = [line.strip("|").split("|")[-1].strip() for line in section.splitlines() if line[:1] == "|"][2:]
    assert [name for name in named if name and name not in page("benchmarks/RESULTS.md")] == []
