"""Options and arguments that several commands share, and how their texts are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from epochal.contracts.configuration import Configuration, Parameters

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of words for people.")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", help="The control plane.  [default: EPOCHAL_URL, the current context, or http://127.0.0.1:8765]"
    ),
]
Home = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Data directory.  [default: EPOCHAL_HOME]", show_default=False)
]
Store = Annotated[str | None, typer.Option(metavar="URL", help="Where snapshots go.  [default: in the data directory]")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The catalog, SQLite or PostgreSQL, without a password.  [default: EPOCHAL_DATABASE_URL, or SQLite in the "
        "data directory]",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Argument(metavar="APP", help="The application's name.")]
Tag = Annotated[str | None, typer.Option("--tag", metavar="NAME", help="As it was at the snapshot with this tag.")]
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="TIME", help="As it was then: 2030-01-01T00:00:00+00:00; without an offset, local time."
    ),
]
IfMatch = Annotated[
    str | None,
    typer.Option(
        "--if-match", metavar="REVISION", help="Only if APP is still at this revision (`epochal show APP --json`)."
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most so many.")]
Wait = Annotated[
    bool,
    typer.Option("--wait/--no-wait", help="Wait until it is done, and fail if it fails; or only say what has begun."),
]
AvailableNow = Annotated[
    bool,
    typer.Option("--available-now", help="Take what the sources have now, commit it, and stop; go on next time."),
]
Drain = Annotated[
    bool,
    typer.Option(
        "--drain/--no-drain",
        help="When all input of bounded sources has ended: let everything that waits come out in a last epoch; or stop "
        "without, to go on next time.",
    ),
]
Parameter = Annotated[
    list[str] | None,
    typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="A parameter; VALUE is JSON, or text. Repeatable."),
]
AcceptChanged = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-changed",
        metavar="OPERATOR[.COLUMN]",
        help="State whose argument, filter, key or input may differ from the version that computed it. Repeatable.",
    ),
]
AcceptPartial = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-partial",
        metavar="OPERATOR[.COLUMN]",
        help="An added aggregate that may count only the rows of later epochs. Repeatable.",
    ),
]
LineageNote = Annotated[str | None, typer.Option("--message", "-m", help="A note for the lineage.")]
ParametersFile = Annotated[
    Path | None, typer.Option("--parameters", metavar="FILE", help="Parameters as one JSON object; -p goes over it.")
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Configuration: parallelism=4, epoch_interval_seconds=0.5, spark.executor.memory=2g, "
        "allow_dropped_state=streaks.current,delays.worst. Repeatable.",
    ),
]
AllowDropped = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-dropped-state", metavar="ID[,ID..]", help="A state table or column that may be dropped. Repeatable."
    ),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="A Python file or a zip with `pipeline` or `build(..)`.")]


def parameters(pairs: Sequence[str] | None, file: Path | None = None) -> Parameters:
    """``-p`` over ``--parameters``. Raises ``typer.BadParameter``."""
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
    """``--accept-changed`` and ``--accept-partial``, each repeated or with commas, as arguments of the client."""
    options = {"accept_changed": changed, "accept_partial": partial}
    return {
        argument: [name for text in texts or () for name in map(str.strip, text.split(",")) if name]
        for argument, texts in options.items()
    }


def configuration(pairs: Sequence[str] | None, allow_dropped: Sequence[str] | None = None) -> dict[str, Any]:
    """``--set`` and ``--allow-dropped-state`` as a configuration.

    ``restart.max_restarts=2`` is nested, ``spark.executor.memory=2g`` is Spark's. A setting that is a list takes a JSON
    array or names with commas between them; where the option is repeated, the lists are joined. Raises
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
    """A time, if there is one. Raises ``typer.BadParameter``."""
    return None if text is None else time_of(text, option)


def time_of(text: str, option: str) -> datetime:
    """A time; one without an offset is local. Raises ``typer.BadParameter``."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time: 2030-01-01T00:00:00.", param_hint=option) from None
