"""The refusals as docs/programs.md shows them; ``python -m epochal.programs.refusals`` writes them there."""

from __future__ import annotations

from epochal.programs.rules import RULES

BEGIN, END = "<!-- refusals: written by `python -m epochal.programs.refusals` -->\n", "<!-- end of refusals -->"


def page() -> str:
    """Markdown: a section for each rule, with its example."""
    return "\n".join(_section(slug) for slug in RULES)


def _section(slug: str) -> str:
    rule = RULES[slug]
    text = f"**`{slug}`: {rule.title}.** {rule.why[0].upper()}{rule.why[1:]} {rule.fix}\n"
    if not rule.example:
        return text
    example = rule.example.strip().replace("  #!", f"  # {slug}")
    return f"{text}\n```text\n{example}\n```\n"


def main() -> None:
    """Write it into the page, between its marks."""
    from pathlib import Path

    path = Path("docs/programs.md")
    head, begin, rest = path.read_text().partition(BEGIN)
    _, end, tail = rest.partition(END)
    path.write_text(head + begin + page() + end + tail)


if __name__ == "__main__":
    main()
