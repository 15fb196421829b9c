"""The reference table of settings: ``python -m tools.settings_table`` updates the one in
``docs/reference/settings.md``."""

from __future__ import annotations

import re
from pathlib import Path

from epochal.cli.settings import Known, known_settings

PAGE = Path(__file__).parents[1] / "docs/reference/settings.md"
_TABLE = re.compile(r"(?<=<!-- settings -->\n).*?(?=<!-- /settings -->)", re.DOTALL)


def table() -> str:
    head = ["| setting | default | environment variable | option of `epochal up` | |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(_row, known_settings().values())]) + "\n"


def _row(known: Known) -> str:
    default = f"`{known.default}`" if known.setting.default is None and known.default else known.default
    option = "--no-authentication" if known.name == "authentication" else known.option
    cells = [f"`{known.name}`", default, f"`{known.variable}`", f"`{option}`" if option else "", known.description]
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def page(text: str) -> str:
    """Return the page with the current table."""
    return _TABLE.sub(lambda _: table(), text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
