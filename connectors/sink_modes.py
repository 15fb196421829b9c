"""Which kinds of stream the sinks take: ``mode``, the same option for all of them, and what their keys add to it.

``append`` takes rows that stay; where the sink replaces rows by keys, also new values of exactly these keys.
``updates`` takes rows that replace earlier ones as well, and writes them as they come. That it takes rows that stay is
for what an author's own function gives: it may be new values of its keys, which only the author knows. Rows as they
were and as they are (changes) are written so, too, with ``_change``; but by keys the one would replace the other.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Literal

from epochal.contracts.stream_kind import EVERY_KIND, Accepted, Kind, StreamKind
from epochal.pipeline.definitions import check_choice

Mode = Literal["append", "updates"]


def taken_by_folder(what: str, mode: Mode) -> Accepted:
    """A folder keeps every row. ``what`` is the connector, for messages. Raises ``OptionError``."""
    return _taken(what, mode, partial(_folder_fix, what))


def taken_by_keys(what: str, mode: Mode, option: str, keys: Collection[str]) -> Accepted:
    """A target that replaces rows by ``keys``, which its ``option`` names; without keys it keeps every row."""
    return _taken(what, mode, partial(_keyed_fix, what, option), tuple(keys))


def described(mode: Mode) -> dict[str, str]:
    """What a sink's description says of it."""
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
        "A row as it was and the row as it is have the same keys, so that one would replace the other. Leave "
        "changes=True out where the stream comes from, to have new values alone; or name no keys and say "
        "mode='updates', to write all of these rows."
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
        return f"Name the keys, {what}(.., {option}={list(stream.keys)}), to have one row for each; or {changed}."
    if option == "keys":
        return (
            "What is to be deleted a column can say, in place of a filter: with_columns(change=\"IF(.., 'upsert', "
            f"'delete')\") and {what}(.., operation='change'); or {changed}."
        )
    return changed[0].upper() + changed[1:] + "."
