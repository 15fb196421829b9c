"""Selection of the tests of a change, and the record of the modules that tests execute."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.change_record import ROOT, Record, changed_files, git, imported_files, parsed, written
from tests.kit.recording import by_package, executed_by, with_shared_tasks
from tests.kit.selection import importing_files, reads_the_checkout, select

FILES = st.dictionaries(
    st.sampled_from([f"tests/test_{name}.py" for name in "abcdefghij"]), st.integers(1, 50), min_size=1
)


@given(FILES, st.data(), st.integers(0, 200), st.integers(0, 100))
def test_tests_of_the_change_come_first(lengths: dict[str, int], data: st.DataObject, limit: int, seed: int) -> None:
    some = st.sets(st.sampled_from(sorted(lengths)))
    reading, importing, executing = data.draw(some), data.draw(some), data.draw(some)
    selection = select(["epochal/x.py"], reading, importing, executing, lengths, limit, seed)
    assert sum(lengths[file] for file in selection.files) <= limit
    assert set(selection.reading) <= reading and set(selection.importing) <= importing - reading
    assert set(selection.executing) <= executing - importing - reading
    assert set(selection.left_out) == (reading | importing | executing) - selection.files
    assert len(selection.sampled) + selection.not_sampled == len(lengths.keys() - reading - importing - executing)
    if sum(lengths[file] for file in reading | importing) <= limit:
        assert set(selection.importing) == importing - reading
    assert selection == select(["epochal/x.py"], reading, importing, executing, lengths, limit, seed)


def test_left_out_tests_of_the_change_are_listed() -> None:
    selection = select(["epochal/x.py"], (), {"tests/a.py"}, {"tests/b.py"}, {"tests/a.py": 5, "tests/b.py": 6}, 8, 1)
    report = "\n".join(selection.lines())
    assert "LEFT OUT" in report and "  tests/b.py" in report and "  tests/a.py" not in report


def test_unknown_change_selects_as_if_everything_changed() -> None:
    selection = select(None, (), (), (), {"tests/a.py": 5, "tests/b.py": 5}, 5, 1)
    assert len(selection.executing) == len(selection.left_out) == 1 and not selection.sampled
    assert selection.lines()[1].startswith("The change is unknown")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    files = {
        "epochal/one.py": "",
        "service/two.py": "",
        "docs/page.md": "",
        "tests/test_one.py": "from epochal import one\n",
        "tests/test_two.py": "def test():\n    import epochal.service.two\n",
        "tests/test_page.py": "PAGE = 'docs/page.md'\n",
        "tests/spark/conftest.py": "",
        "tests/spark/test_other.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("epochal/one.py", "tests/test_one.py"),
        ("service/two.py", "tests/test_two.py"),
        ("docs/page.md", "tests/test_page.py"),
        ("tests/test_page.py", "tests/test_page.py"),
        ("tests/spark/conftest.py", "tests/spark/test_other.py"),
    ],
)
def test_tests_of_a_changed_file_are_found(checkout: Path, changed: str, expected: str) -> None:
    tests = [str(path.relative_to(checkout)) for path in checkout.rglob("test_*.py")]
    assert importing_files([changed], tests, checkout) == {expected}


def test_tests_that_read_the_checkout_are_found() -> None:
    """A test that moved breaks what names it: the change imports neither."""
    assert reads_the_checkout("tests/unit/test_security_document.py") and reads_the_checkout(
        "tests/unit/test_selection.py"
    )
    assert not reads_the_checkout("tests/unit/test_timers_declared.py")


def test_imports_name_modules_and_their_members() -> None:
    assert {"tests/kit/change_record.py", "tests/kit/selection.py"} <= imported_files(Path(__file__))


def test_changed_files_include_uncommitted_and_new_ones(checkout: Path) -> None:
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "first")
    first = git(checkout, "rev-parse", "HEAD")
    assert changed_files(first, checkout) == frozenset()
    (checkout / "epochal/one.py").write_text("A = 1\n")
    git(checkout, "commit", "--quiet", "--all", "--message", "second")
    (checkout / "service/two.py").write_text("B = 1\n")
    (checkout / "service/three.py").write_text("")
    assert changed_files(first, checkout) == {"epochal/one.py", "service/two.py", "service/three.py"}
    assert changed_files("0" * 40, checkout) is None


def test_record_is_read_as_it_was_written() -> None:
    record = Record(
        "abc", {"tests/a.py": frozenset({"epochal/x.py"}), "tests/b.py": frozenset({"epochal/x.py", "service/y.py"})}
    )
    assert parsed(written(record)) == record


def test_recorded_tests_and_modules_exist() -> None:
    """A record of files that were renamed since selects too few tests."""
    record = Record.read()
    known = {test for test in record.executed if (ROOT / test).is_file()}
    assert len(known) >= 0.9 * len(record.executed), "run `make coverage` and commit tests/executed.json"


def test_only_lines_within_functions_count_as_executed() -> None:
    file = "tests/kit/change_record.py"
    body = next(number for number, line in enumerate((ROOT / file).read_text().splitlines(), 1) if "json.loads" in line)
    test = "tests/unit/test_selection.py"
    assert executed_by(
        {file: {1: ["none|tests/unit/test_sampling.py"], body: [f"none|{test}", "tests/unit/gone.py"]}}
    ) == {test: {file}}


def test_tasks_of_a_shared_session_count_for_each_of_its_files() -> None:
    executed = {
        "tests/spark/test_harness.py": {"epochal/tasks/operator.py", "epochal/testing/harness.py"},
        "tests/spark/test_base_files.py": {"epochal/engine/session.py"},
    }
    shared = with_shared_tasks(executed)
    assert shared["tests/spark/test_base_files.py"] == {"epochal/engine/session.py", "epochal/tasks/operator.py"}


def test_coverage_is_summed_by_package() -> None:
    summary = {"covered_lines": 3, "num_statements": 4, "covered_branches": 1, "num_branches": 2}
    found = by_package(
        {"epochal/a.py": summary, "epochal/b.py": summary, "service/a.py": summary | {"covered_lines": 4}}
    )
    assert found["epochal"] == (75.0, 50.0) and found["service"] == (100.0, 50.0)
