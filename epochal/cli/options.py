"""Options and arguments shared by several commands, and the parsing of their values."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, get_origin
from urllib.parse import urlsplit

import typer

from epochal.contracts.configuration import Configuration, Parameters

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="URL of the control plane.  \\[default: EPOCHAL_URL, the current context, or http://127.0.0.1:8765]",
    ),
]
Home = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Data directory.  \\[default: EPOCHAL_HOME]", show_default=False)
]
Store = Annotated[
    str | None, typer.Option(metavar="URL", help="URL of the snapshot store.  \\[default: in the data directory]")
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="URL of the catalog (SQLite or PostgreSQL), without a password.  \\[default: EPOCHAL_DATABASE_URL, "
        "or SQLite in the data directory]",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Argument(metavar="APP", help="The application's name.")]
Tag = Annotated[str | None, typer.Option("--tag", metavar="NAME", help="Read the snapshot with this tag.")]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Read the latest snapshot at this time, such as 2030-01-01T00:00:00+00:00; local time without an offset.",
    ),
]
IfMatch = Annotated[
    str | None,
    typer.Option(
        "--if-match", metavar="REVISION", help="Fail unless APP is at this revision (`epochal show APP --json`)."
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of results.")]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait", help="Wait for the operation and report its failure, or return when it has been accepted."
    ),
]
AvailableNow = Annotated[
    bool,
    typer.Option(
        "--available-now",
        help="Process the input that is available now, and stop; the next start continues from there.",
    ),
]
Drain = Annotated[
    bool,
    typer.Option(
        "--drain/--no-drain",
        help="At the end of bounded input, emit open windows, unmatched rows and timers in a last epoch; or "
        "stop without it, so that the application can be started again.",
    ),
]
Parameter = Annotated[
    list[str] | None,
    typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Set a parameter; VALUE is JSON or text. Repeatable."),
]
AcceptChanged = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-changed",
        metavar="OPERATOR[.COLUMN]",
        help="Accept that an argument, filter, key or input of this state differs from the version that computed it. "
        "Repeatable.",
    ),
]
AcceptPartial = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-partial",
        metavar="OPERATOR[.COLUMN]",
        help="Accept that this added aggregate counts only rows of later epochs. Repeatable.",
    ),
]
LineageNote = Annotated[str | None, typer.Option("--message", "-m", help="Message recorded in the lineage.")]
ParametersFile = Annotated[
    Path | None,
    typer.Option("--parameters", metavar="FILE", help="File with parameters as one JSON object; -p takes precedence."),
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a configuration value: parallelism=4, epoch_interval_seconds=0.5, spark.executor.memory=2g, "
        "allow_dropped_state=streaks.current,delays.worst. Repeatable.",
    ),
]
AllowDropped = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-dropped-state", metavar="ID[,ID..]", help="State table or column that may be dropped. Repeatable."
    ),
]
File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Python file or zip that defines `pipeline` or `build(..)`.")
]


def location(place: str) -> str:
    """A URL, or the absolute path of a folder."""
    return place if urlsplit(place).scheme else os.path.abspath(place)


def parameters(pairs: Sequence[str] | None, file: Path | None = None) -> Parameters:
    """Merge ``-p`` over ``--parameters``. Raises ``typer.BadParameter``."""
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = json.loads(file.read_text())
        except OSError as error:
            raise typer.BadParameter(f"{file} cannot be read: {error.strerror}.", param_hint="--parameters") from None
        except ValueError as error:
            raise typer.BadParameter(f"{file} is not JSON: {error}.", param_hint="--parameters") from None
        if not isinstance(values, dict):
            raise typer.BadParameter(f"{file} does not hold a JSON object.", param_hint="--parameters")
    return {**values, **dict(_pair(pair, "-p") for pair in pairs or ())}


def acceptance(changed: Sequence[str] | None, partial: Sequence[str] | None) -> dict[str, Any]:
    """Client arguments for ``--accept-changed`` and ``--accept-partial``; both may be repeated or comma-separated."""
    options = {"accept_changed": changed, "accept_partial": partial}
    return {
        argument: [name for text in texts or () for name in map(str.strip, text.split(",")) if name]
        for argument, texts in options.items()
    }


def configuration(pairs: Sequence[str] | None, allow_dropped: Sequence[str] | None = None) -> dict[str, Any]:
    """Build a configuration from ``--set`` and ``--allow-dropped-state``.

    ``restart.max_restarts=2`` is nested; ``spark.executor.memory=2g`` is an option of Spark. A list is a JSON array or
    comma-separated names; repeated options are concatenated. Raises
    ``typer.BadParameter``.
    """
    values: dict[str, Any] = {}
    pairs = [*(pairs or ()), *(f"{_DROPPED}={each}" for each in allow_dropped or ())]
    for pair in pairs:
        name, value = _pair(pair, "--set")
        section, dot, member = name.partition(".")
        if section == "spark" and dot:
            values.setdefault("spark", {})[name] = pair.partition("=")[2]
        elif dot:
            values.setdefault(section, {})[member] = value
        elif name in _LISTS:
            values[name] = [*values.get(name, ()), *_list(name, pair.partition("=")[2], value)]
        else:
            values[name] = value
    return values


_DROPPED = "allow_dropped_state"
_LISTS = frozenset(name for name, field in Configuration.model_fields.items() if get_origin(field.annotation) is tuple)


def _list(name: str, text: str, value: Any) -> list[str]:
    if isinstance(value, list):
        return value
    found = [] if value is None else [each.strip() for each in (value if isinstance(value, str) else text).split(",")]
    if "" in found:
        raise typer.BadParameter(
            f"{name}={text!r} has an empty element: write {name}=first,second, or {name}=[] for an empty list.",
            param_hint="--set",
        )
    return found


def _pair(pair: str, option: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{pair!r} is not NAME=VALUE.", param_hint=option)
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text


def moment(text: str | None, option: str = "--at") -> datetime | None:
    """Parse an optional time. Raises ``typer.BadParameter``."""
    return None if text is None else time_of(text, option)


def time_of(text: str, option: str) -> datetime:
    """Parse a time; without an offset it is local. Raises ``typer.BadParameter``."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time. Use the format 2030-01-01T00:00:00.", param_hint=option
        ) from None
