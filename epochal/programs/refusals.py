"""The refusals as docs/programs.md shows them."""

from __future__ import annotations

from epochal.programs.rules import RULES


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
