"""What each stateless verb makes of a stream's kind. No Spark is needed: what cannot be known here is ``updates``.

Rows that stand for themselves (append) stay so whatever a verb does to them, and what is not an upsert before a verb is
none after it. So the rules are about upserts: does every key still have at most one row in an epoch, is it still the
whole news of the key, and under which names are the key columns there?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from epochal.contracts.stream_kind import APPEND, CHANGES, Kind, StreamKind, same_columns, updates, upsert
from epochal.declarations.expressions import Expression
from epochal.declarations.names import listed
from epochal.declarations.references import columns_read, is_star, multiplies_rows, renamed_column

KindOf = Callable[[Sequence[StreamKind]], StreamKind]
"""From the kinds of a verb's streams (tables are none) to that of what it gives."""


def filtered(condition: Expression) -> KindOf:
    """A condition over the key columns alone holds for a key always or never."""

    def of(stream: StreamKind) -> StreamKind:
        read = columns_read(condition)
        if read is not None and read <= _folded(stream.keys):
            return stream
        return updates("a key that no longer meets the condition would keep its last row that did")

    return _of_upsert(of)


def selected(columns: Sequence[Expression]) -> KindOf:
    """The key columns may be renamed, and neither left out nor computed."""

    def of(stream: StreamKind) -> StreamKind:
        if any(map(multiplies_rows, columns)):
            return updates("it may give several rows of one key")
        renamed = [found for found in map(renamed_column, columns) if found is not None]
        every_column = any(map(is_star, columns))
        keys = []
        for key in stream.keys:
            names = [alias for column, alias in renamed if column.casefold() == key.casefold()]
            if every_column or key in names:
                keys.append(key)
            elif names:
                keys.append(names[0])
            else:
                return _without(key)
        return upsert(keys)

    return _of_upsert(of)


def replaced(names: Sequence[str], columns: Sequence[Expression]) -> KindOf:
    """Key columns stay as they are where no column is computed in their place."""

    def of(stream: StreamKind) -> StreamKind:
        if any(map(multiplies_rows, columns)):
            return updates("it may give several rows of one key")
        replaced = _folded(names)
        changed = [key for key in stream.keys if key.casefold() in replaced]
        return _without(changed[0]) if changed else stream

    return _of_upsert(of)


def dropped(names: Sequence[str]) -> KindOf:
    def of(stream: StreamKind) -> StreamKind:
        left_out = [key for key in stream.keys if key.casefold() in _folded(names)]
        return _without(left_out[0]) if left_out else stream

    return _of_upsert(of)


def joined(how: str) -> KindOf:
    """With a table, which has at most one row for a row of the stream: a left join then keeps every row, once."""

    def of(stream: StreamKind) -> StreamKind:
        if how == "left":
            return stream
        return updates("a key whose row finds no partner any more, or now finds one, would keep its last row")

    return _of_upsert(of)


def by_author(streams: Sequence[StreamKind]) -> StreamKind:
    """An author's function from DataFrame to DataFrame."""
    return _of_upsert(lambda stream: updates("what a function does with rows and keys cannot be known"))(streams)


def with_rejects(stream: StreamKind) -> StreamKind:
    """``with_watermark`` keeps rows out whose event time cannot be."""
    rule = _of_upsert(lambda upsert: updates("a key whose new row has no event time would keep its last row that had"))
    return rule([stream])


def kept_out(streams: Sequence[StreamKind]) -> StreamKind:
    """What is kept out of streams because of its event time."""
    rule = _of_upsert(lambda upsert: updates("of a key only those rows that were kept out are told"))
    return united([rule([stream]) for stream in streams])


def united(streams: Sequence[StreamKind]) -> StreamKind:
    """Two streams may have values of the same key, of which neither replaces the other's."""
    if len(streams) == 1 or all(stream == APPEND for stream in streams):
        return streams[0]
    if any(stream.kind is Kind.CHANGES for stream in streams):
        return CHANGES
    if all(stream.kind is Kind.UPSERT and same_columns(stream.keys, streams[0].keys) for stream in streams):
        return updates("a key may come from several of the streams that it unites")
    if all(stream.kind is Kind.UPDATES for stream in streams):
        return streams[0]
    return updates(f"it unites {listed(map(str, dict.fromkeys(streams)))}")


def _of_upsert(rule: Callable[[StreamKind], StreamKind]) -> KindOf:
    def of(streams: Sequence[StreamKind]) -> StreamKind:
        stream = streams[0]
        return rule(stream) if stream.kind is Kind.UPSERT else stream

    return of


def _without(key: str) -> StreamKind:
    return updates(f"without key column {key!r} as it was nobody can tell which row a row replaces")


def _folded(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name.casefold() for name in names)
