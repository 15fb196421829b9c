"""RESULTS.md: what one command writes leaves what others have written as it is."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import write_part, write_section


def test_each_command_has_a_section_of_its_own_in_one_order(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\nFrom before there were sections.\n")
    write_section("bench-nexmark", "## Nexmark\n\nfirst", page)
    assert page.read_text() == (
        "# Results\n\n<!-- make bench -->\n\nFrom before there were sections.\n\n"
        "<!-- make bench-nexmark -->\n\n## Nexmark\n\nfirst\n"
    )
    write_section("bench", "all", page)
    write_section("bench-nexmark", "## Nexmark\n\nsecond\n", page)
    assert page.read_text() == (
        "# Results\n\n<!-- make bench -->\n\nall\n\n<!-- make bench-nexmark -->\n\n## Nexmark\n\nsecond\n"
    )


def test_parts_of_a_section_are_written_one_by_one_in_one_order(tmp_path: Path) -> None:
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
