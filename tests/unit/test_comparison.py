"""``make bench-compare``: verdicts, history and checkouts of two commits that are measured alternately."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import compare
from benchmarks.comparison import checkouts, history
from benchmarks.comparison.checkouts import Checkout
from benchmarks.comparison.history import Comparison
from benchmarks.comparison.measures import QUANTITIES
from benchmarks.comparison.verdict import Compared
from epochal.errors import EnvironmentProblem
from tests.kit.change_record import git

MACHINE = {"processor": "one", "cores": "2"}
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "epochal"
version = "0"
[tool.hatch.build]
dev-mode-dirs = ["."]
"""


def seconds(before: Sequence[float], now: Sequence[float]) -> Compared:
    return Compared("an epoch", "s", False, before, now)


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        ((1.0, 1.0, 1.0), (1.2, 1.15, 1.05), "slower"),
        ((1.0, 1.0, 1.0), (1.09, 1.09, 1.09), "as fast"),
        ((1.0, 1.0, 1.0), (1.2, 1.3, 0.9), "undecided"),
        ((1.0, 1.0, 1.0), (0.8, 0.85, 0.95), "faster"),
        ((1.0, 1.0, 1.0), (0.8, 0.85, 1.01), "undecided"),
        ((1.0, 2.0, 4.0), (1.0, 2.0, 4.0), "as fast"),
        ((1.0,), (2.0,), "undecided"),
        ((2.0,), (1.0,), "undecided"),
        ((2.0,), (2.0,), "as fast"),
    ],
)
def test_a_verdict_requires_the_median_and_every_round(
    before: Sequence[float], now: Sequence[float], verdict: str
) -> None:
    assert seconds(before, now).verdict == verdict
    as_rates = [[1 / value for value in values] for values in (before, now)]
    assert Compared("rows", "/s", True, *as_rates).verdict == verdict, "a lower rate is slower"


def test_costs_are_ratios_within_each_round() -> None:
    assert list(seconds((1.0, 2.0), (2.0, 1.0)).costs) == [2.0, 0.5]
    assert list(Compared("rows", "/s", True, (100.0, 100.0), (50.0, 200.0)).costs) == [2.0, 0.5]


def test_table_rows_show_medians_ratio_range_and_verdict() -> None:
    assert history.cells(seconds((1.0, 2.0, 1.5), (1.3, 2.4, 1.8))) == [
        "an epoch",
        "1.5 s",
        "1.8 s",
        "1.20 to 1.30",
        "slower",
    ]


def test_the_history_is_appended_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    assert history.comparisons(file) == []
    found = [
        Comparison(day, "b" * 40, "a" * 40, MACHINE, [seconds([1.0, 1.5], [1.25, 1.75])])
        for day in ("2026-11-22", "2026-11-23")
    ]
    for each in found:
        history.add(each, file)
    assert history.comparisons(file) == found
    assert [json.loads(line)["on"] for line in file.read_text().splitlines()] == ["2026-11-22", "2026-11-23"]


def test_rounds_measure_both_checkouts_in_alternating_order(monkeypatch: pytest.MonkeyPatch) -> None:
    this, other = Checkout(Path("this"), Path("python"), "b" * 40), Checkout(Path("other"), Path("python"), "a" * 40)
    runs = []

    def measured(name: str, checkout: Checkout) -> dict[str, float]:
        runs.append((name, checkout.folder.name))
        return {quantity: float(len(runs)) for quantity in QUANTITIES if quantity == name}

    monkeypatch.setattr(compare, "measured", measured)
    first, second = list(QUANTITIES)[:2]
    found = compare.compared(this, other, [first, second], 2)
    order = ["other", "this", "other", "this", "this", "other", "this", "other"]
    assert runs == list(zip([first, first, second, second] * 2, order, strict=True))
    assert [(each.name, each.before, each.now) for each in found] == [(first, [1, 6], [2, 5]), (second, [3, 8], [4, 7])]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits of a package ``epochal`` that contains the name of its commit."""
    root = tmp_path / "repository"
    for folder in ("epochal", "benchmarks"):
        (root / folder).mkdir(parents=True)
    git(root, "init", "--quiet")
    (root / "pyproject.toml").write_text(PYPROJECT)
    for version in ("first", "second"):
        (root / "epochal" / "__init__.py").write_text(f"VERSION = {version!r}\n")
        (root / "benchmarks" / "__init__.py").write_text(f"FROM = {version!r}\n")
        (root / checkouts.LOCK).write_text(f"{version}\n")
        git(root, "add", ".")
        git(root, "commit", "--quiet", "--message", version)
    return root


@pytest.mark.long
def test_another_commit_runs_its_code_with_these_benchmarks(repository: Path) -> None:
    with checkouts.other_checkout("HEAD~1", repository) as other:
        assert other.commit == git(repository, "rev-parse", "HEAD~1") and not other.changed
        code = "import epochal, benchmarks, pyarrow; print(epochal.VERSION, benchmarks.FROM)"
        done = subprocess.run([other.python, "-c", code], cwd=other.folder, check=True, capture_output=True, text=True)
        assert done.stdout.split() == ["first", "second"]
        assert not checkouts.same_libraries(checkouts.this_checkout(repository), other)
    assert not other.folder.exists()
    with checkouts.other_checkout("HEAD~1", repository, own_benchmarks=True) as other:
        assert "'first'" in (other.folder / "benchmarks" / "__init__.py").read_text()
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert git(repository, "status", "--porcelain") == ""


def test_a_changed_history_does_not_make_a_checkout_changed(repository: Path) -> None:
    history_file = repository / history.HISTORY.relative_to(checkouts.ROOT)
    history_file.write_text("{}\n")
    clean = checkouts.this_checkout(repository)
    assert (clean.changed, clean.name) == (False, git(repository, "rev-parse", "HEAD")[:10])
    (repository / "epochal" / "__init__.py").write_text("VERSION = 'changed'\n")
    changed = checkouts.this_checkout(repository)
    assert changed.changed and changed.name.endswith(" with changes")


def test_unknown_commits_are_refused(repository: Path) -> None:
    with (
        pytest.raises(EnvironmentProblem, match="There is no commit 'nothing'"),
        checkouts.other_checkout("nothing", repository),
    ):
        pass
