"""Commands that take keys: how they are written, and what is said of one that looks like an option."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from typer.core import TyperCommand


def key_columns(text: str) -> list[str | None]:
    """The columns of a key as one argument, percent-encoded: ``JFK,LAX``; ``%00`` is null."""
    return [None if column == "%00" else unquote(column) for column in text.split(",")]


class KeyCommand(TyperCommand):
    """Refuses a key that looks like an option with the way out: ``--`` ends the options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest: list[str] = []
        try:
            rest = super().parse_args(ctx, list(args))
        except Exception as error:
            option = getattr(error, "option_name", None)
            # A misspelt option has a name that is near; what remains is a key.
            if option is None or getattr(error, "possibilities", None):
                raise
            key = next((argument for argument in args if argument.startswith(option)), option)
            ctx.fail(
                f"No such option: {key}. A key that begins with a hyphen comes after --, and options before it: "
                f"{ctx.command_path} .. -- {key}"
            )
        return rest
