"""Pagination of queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BindParameter, Select, literal, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from epochal.service.domain.pages import PageRequest, Part, cut


def paginate(
    session: Session,
    query: Select[Any],
    page: PageRequest,
    columns: Sequence[InstrumentedAttribute[Any]],
    *,
    descending: bool = False,
) -> Part:
    """One page of ``query`` in the order of ``columns``, which together are unique."""
    after = page.after(*(column.type.python_type for column in columns))
    if after is not None:
        position, last = tuple_(*columns), tuple_(*map(_typed, columns, after))
        query = query.where(position < last if descending else position > last)
    order = [column.desc() if descending else column.asc() for column in columns]
    rows = session.scalars(query.order_by(*order).limit(page.limit + 1)).all()
    return cut(rows, page, lambda row: [getattr(row, column.key) for column in columns])


def _typed(column: InstrumentedAttribute[Any], value: Any) -> BindParameter[Any]:
    """A literal with the column's type. Within a tuple SQLAlchemy does not infer the type from the compared column."""
    return literal(value, column.type)
