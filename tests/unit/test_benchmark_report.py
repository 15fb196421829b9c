"""RESULTS.md: each command rewrites only its own section."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import figures, scale
from benchmarks.descriptions import BEGIN, DESCRIBED, END, Baseline, baselines_described, updated
from benchmarks.report import (
    RESULTS,
    read_section,
    remove_section,
    write_block,
    write_part,
    write_section,
    written_sections,
)
from benchmarks.sdg.recovery import ONE_MACHINE


def test_each_command_has_its_own_section_in_a_fixed_order(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\nText without a section.\n")
    write_section("bench-nexmark", "## Nexmark\n\nfirst", page)
    assert page.read_text() == (
        "# Results\n\n<!-- make bench -->\n\nText without a section.\n\n"
        "<!-- make bench-nexmark -->\n\n## Nexmark\n\nfirst\n"
    )
    write_section("bench", "all", page)
    write_section("bench-nexmark", "## Nexmark\n\nsecond\n", page)
    assert page.read_text() == (
        "# Results\n\n<!-- make bench -->\n\nall\n\n<!-- make bench-nexmark -->\n\n## Nexmark\n\nsecond\n"
    )


def test_parts_of_a_section_keep_a_fixed_order(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    write_section("bench", "all", page)
    write_part("figures", "second", "## Second\n\nold", ("first", "second"), "## Figures", page)
    write_part("figures", "first", "## First", ("first", "second"), "## Figures", page)
    write_part("figures", "second", "## Second\n\nnew", ("first", "second"), "## Figures\n\nnewer", page)
    assert page.read_text() == (
        "# Results\n\n<!-- make bench -->\n\nall\n\n<!-- make figures -->\n\n## Figures\n\nnewer\n\n"
        "<!-- part first -->\n\n## First\n\n<!-- part second -->\n\n## Second\n\nnew\n"
    )
    write_part("figures", "second", "## Second", ("second",), "## Figures", page)
    assert "First" not in page.read_text()


def test_changed_baselines_are_listed_until_measured_again() -> None:
    baselines = (Baseline("old", "unchanged"), Baseline("new", "tuned", ("2026-03-02", "it was tuned")))
    section = f"Written by `make bench` on 2026-03-01.\n\n| a | 1 |\n\n{BEGIN}\nold block\n{END}\n\n## The machine\n"
    older = updated(section, baselines)
    assert "**These baselines changed after 2026-03-01; the numbers here are " in older
    assert "- new: it was tuned." in older and "old block" not in older
    assert older.startswith("Written by `make bench` on 2026-03-01.\n\n| a | 1 |\n")
    assert older.endswith("## The machine\n")
    assert updated(older, baselines) == older
    assert "changed after" not in updated(section.replace("03-01", "03-02"), baselines)
    with pytest.raises(ValueError, match="no block"):
        updated("Written by `make bench` on 2026-03-01.", baselines)


def test_the_results_page_matches_the_baseline_descriptions() -> None:
    assert {"bench", "bench-nexmark"} <= written_sections()
    for command in written_sections() & DESCRIBED.keys():
        baselines, section = DESCRIBED[command], read_section(command)
        assert updated(section, baselines) == section, "run python -m benchmarks.run --descriptions"
        assert baselines_described(baselines, "9999-12-31").splitlines()[1] in section
    page = RESULTS.read_text()
    for text in (figures.RUNS.introduction, scale.RUNS.introduction, ONE_MACHINE):
        assert text in page


def test_a_section_can_be_removed(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    write_section("bench", "all", page)
    write_section("bench-chosen", "some", page)
    assert read_section("bench-chosen", page) == "some"
    remove_section("bench-chosen", page)
    assert "bench-chosen" not in page.read_text()
    assert read_section("bench", page) == "all"


def test_a_block_of_another_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- make it -->\n\nold\n\n<!-- end of make it -->\n\nafter\n")
    write_block(page, "make it", "new\n")
    assert page.read_text() == "before\n\n<!-- make it -->\n\nnew\n\n<!-- end of make it -->\n\nafter\n"
    with pytest.raises(ValueError, match="no block"):
        write_block(page, "make other", "new")
