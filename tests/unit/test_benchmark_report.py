"""RESULTS.md: what one command writes leaves what others have written as it is."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import write_section


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
