"""Options of connectors and backends: by allow-list, and a misspelt one is answered with the name that was meant."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from epochal.declarations.names import closest, listed
from epochal.errors import OptionError


def check_options(what: str, options: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Raises ``OptionError`` for the first option that ``what`` does not have, naming the closest that it has."""
    for name in options:
        if name not in allowed:
            raise OptionError(
                f"{what} has no option {name!r}.{closest(name, allowed)} Options are {listed(sorted(allowed))}."
            )


def check_choice(what: str, name: str, value: Any, choices: Collection[str]) -> None:
    """Raises ``OptionError`` when the value is not one of the choices."""
    if value not in choices:
        raise OptionError(f"{what}: {name} is {value!r}; it is one of {listed(choices)}.{closest(str(value), choices)}")


def check_flag(what: str, name: str, value: Any) -> None:
    """Raises ``OptionError`` when the value is neither ``True`` nor ``False``."""
    if not isinstance(value, bool):
        raise OptionError(f"{what}: {name} is {value!r}; it is True or False.")


def check_positive(what: str, name: str, value: Any, *, whole: bool) -> None:
    """Raises ``OptionError`` when the value is neither ``None`` nor a number above zero."""
    kinds = (int,) if whole else (int, float)
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or value <= 0):
        raise OptionError(f"{what}: {name} is {value!r}; it is a {'whole ' if whole else ''}number above 0.")
