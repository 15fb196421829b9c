"""Kinds of stream that sinks accept: the common option ``mode``, and the effect of a sink's keys.

``append`` accepts append-only streams. A sink that replaces rows by keys also accepts upsert streams with exactly these
keys. ``updates`` also accepts rows that replace earlier rows, and writes each row as it arrives. It accepts append-only
streams because the output of an author's function may hold new values of keys, which the engine cannot detect. Streams
of changes (old and new rows) are written with ``_change``, but not to a sink with keys, where one row would replace
the other.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Final, Literal, get_args

from epochal.contracts.backend import Buffering
from epochal.contracts.configuration import Delivery
from epochal.contracts.stream_kind import EVERY_KIND, Accepted, Kind, StreamKind
from epochal.declarations.intervals import fixed_interval
from epochal.errors import OptionError, PipelineError
from epochal.pipeline.definitions import check_choice

Mode = Literal["append", "updates"]

_SHORT_UNITS: Final = {"s": "seconds", "min": "minutes", "h": "hours"}
_SHORT_UNIT: Final = re.compile(r"(?<=\d)\s*(s|min|h)\b")


def taken_by_folder(what: str, mode: Mode) -> Accepted:
    """Kinds accepted by a folder, which keeps every row. ``what`` names the connector. Raises ``OptionError``."""
    return _taken(what, mode, partial(_folder_fix, what))


def taken_by_keys(what: str, mode: Mode, option: str, keys: Collection[str]) -> Accepted:
    """Kinds accepted by a target that replaces rows by ``keys``, set by ``option``. Without keys it keeps every row."""
    return _taken(what, mode, partial(_keyed_fix, what, option), tuple(keys))


def described(mode: Mode) -> dict[str, str]:
    """The mode in a sink's description; empty for the default."""
    return {"mode": mode} if mode != "append" else {}


def _taken(what: str, mode: Mode, fix: partial[str], keys: tuple[str, ...] = ()) -> Accepted:
    check_choice(what, "mode", mode, ("append", "updates"))
    if mode == "updates":
        by_keys = Accepted(frozenset(Kind) - {Kind.CHANGES}, _as_rows, None)
        return by_keys if keys else EVERY_KIND
    if keys:
        return Accepted(frozenset({Kind.APPEND, Kind.UPSERT}), fix, keys)
    return Accepted(frozenset({Kind.APPEND}), fix)


def _as_rows(stream: StreamKind) -> str:
    return (
        "The old and the new version of a row have the same keys, so that one would replace the other. Remove "
        "changes=True where the stream is created, to write new values only; or set mode='updates' without keys, to "
        "write all rows."
    )


def _folder_fix(what: str, stream: StreamKind) -> str:
    fix = f"To write the rows that changed in each epoch, say {what}(.., mode='updates')."
    if stream.kind is Kind.UPSERT:
        fix += f" For one row per key take a sink that replaces rows: dbms.sink(.., keys={list(stream.keys)})."
    return fix


def _keyed_fix(what: str, option: str, stream: StreamKind) -> str:
    changed = f"say {what}(.., mode='updates') to write the rows that changed in each epoch as they come"
    if stream.kind is Kind.CHANGES:
        return _as_rows(stream)
    if stream.kind is Kind.UPSERT:
        return f"Set the keys, {what}(.., {option}={list(stream.keys)}), to have one row for each; or {changed}."
    if option == "keys":
        return (
            "A column can mark the rows to delete, instead of a filter: with_columns(change=\"IF(.., 'upsert', "
            f"'delete')\") and {what}(.., operation='change'); or {changed}."
        )
    return changed[0].upper() + changed[1:] + "."


def buffering_of(what: str, commit_every: str | None) -> Buffering | None:
    """The option ``commit_every`` of connector ``what``, such as ``"60 s"`` or ``"5 minutes"``. Raises
    ``OptionError``."""
    if commit_every is None:
        return None
    long = commit_every
    if isinstance(commit_every, str):
        long = _SHORT_UNIT.sub(lambda found: f" {_SHORT_UNITS[found[1]]}", commit_every)
    try:
        microseconds = fixed_interval(f"{what}: commit_every", long, least=1)
    except PipelineError as error:
        raise OptionError(error.message) from None
    return Buffering(microseconds / 1_000_000)


def different_names(what: str, option: str, names: str | Sequence[str]) -> tuple[str, ...]:
    """An option that names one column or several. Raises ``OptionError`` for an empty or repeated name."""
    found = (names,) if isinstance(names, str) else tuple(names)
    if len(set(found)) < len(found) or not all(found):
        raise OptionError(f"{what}: {option} must not have empty or repeated names.")
    return found


def check_installed(what: str, package: str, extra: str) -> None:
    """Raises ``OptionError`` if the package of an optional dependency is missing."""
    if find_spec(package) is None:
        raise OptionError(f"{what} needs the package {package}. Install it with: pip install 'epochal[{extra}]'.")


EXACTLY_ONCE: tuple[Delivery, ...] = ("exactly_once",)


def check_delivery(what: str, delivery: Delivery | None, can: tuple[Delivery, ...], why: str) -> None:
    """Check the option ``delivery`` of connector ``what``. Raises ``OptionError``.

    ``can`` lists the supported deliveries; ``why`` is the reason that the others are not supported.
    """
    if delivery is None:
        return
    check_choice(what, "delivery", delivery, get_args(Delivery))
    if delivery not in can:
        raise OptionError(f"{what} does not support delivery={delivery!r}: {why}. Supported: {', '.join(can)}.")


def described_delivery(delivery: Delivery | None) -> dict[str, str]:
    """The delivery in a sink's description; empty if not set."""
    return {} if delivery is None else {"delivery": delivery}
