"""Commands that take keys: one that begins with a hyphen looks like an option, and the error says how to give it."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


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
