"""The reasons for which standing queries are refused, each with message, fix and example.

A test runs the examples, and docs/reference/standing-queries.md shows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from epochal.errors import QueryRefused

EXAMPLE_COLUMNS: Final = {
    "user": "bigint",
    "device": "string",
    "country": "string",
    "amount": "double",
    "price": "decimal(10,2)",
    "items": "int",
    "at": "timestamp",
    "tags": "array<string>",
}
_W: Final = "WINDOW '5 minutes'"


@dataclass(frozen=True)
class Reason:
    """``sentence``: the message, with placeholders. ``example``: a query that is refused for this reason, over
    :data:`EXAMPLE_COLUMNS`; the position of the refusal is that of the text between ``»`` and ``«``. A text in
    ``⟪..⟫20`` is repeated 20 times, with its number in place of ``#``."""

    slug: str
    sentence: str
    fix: str
    example: str


REASONS: Final[tuple[Reason, ...]] = (
    # The statement.
    Reason("syntax", "it has {0}", "Correct it.", f"SELECT count(*) AS n WHERE items »>« {_W}"),
    Reason(
        "not-a-select",
        "it is not a SELECT",
        "A standing query reads: SELECT .. [WHERE ..] [GROUP BY ..] WINDOW '5 minutes'.",
        "»DROP TABLE events«",
    ),
    Reason(
        "one-statement",
        "it has more than one statement",
        "Add them one by one.",
        f"SELECT count(*) AS n {_W}»;« SELECT 1",
    ),
    Reason(
        "too-long",
        "it is longer than {0}",
        "Split it into several queries, or compute the first steps in the application.",
        f"SELECT count(*) AS n WHERE country = '⟪x⟫3962»yz«' {_W}",
    ),
    Reason(
        "too-deep",
        "it is nested too deeply",
        "Nest expressions at most 16 deep.",
        f"SELECT count(*) AS n WHERE ⟪NOT ⟫20»items« = 1 {_W}",
    ),
    Reason(
        "escape",
        "it has a backslash, which systems interpret differently",
        "Write the character itself; enclose a text with quotation marks in the other kind of quotation marks.",
        f"SELECT count(*) AS n WHERE country = 'S»\\«E' {_W}",
    ),
    Reason(
        "clause",
        "{0} is not allowed in a standing query",
        "Use SELECT, WHERE, GROUP BY, HAVING and WINDOW. The query reads the stream of its operator.",
        f"SELECT count(*) AS n FROM »events« {_W}",
    ),
    Reason(
        "subquery",
        "it has a subquery",
        "Standing queries have neither joins nor subqueries. Join in the application.",
        f"SELECT count(*) AS n WHERE user IN (»SELECT« 1) {_W}",
    ),
    # Windows.
    Reason(
        "no-window",
        "it does not end with a window",
        "End it with WINDOW '5 minutes', or with WINDOW '1 hour' SLIDE '5 minutes'.",
        "SELECT count(*) AS n»«",
    ),
    Reason(
        "window-interval",
        "{0} is not a valid window length",
        "Use an interval of days or shorter units, such as '5 minutes'.",
        "SELECT count(*) AS n WINDOW »'a while'«",
    ),
    Reason(
        "window-length",
        "{0} is not between {1} and {2}, the limits of the application",
        "Choose a length between them.",
        "SELECT count(*) AS n WINDOW »'1 second'«",
    ),
    Reason(
        "window-slide",
        "windows of {0} cannot slide by {1}",
        "The slide must divide the length, and a row may be in at most 60 windows.",
        "SELECT count(*) AS n WINDOW '1 hour' SLIDE »'7 minutes'«",
    ),
    # What is selected.
    Reason(
        "no-aggregate",
        "it selects no aggregate",
        "A standing query returns aggregates of windows: count, sum, avg, min, max, count_if.",
        f"SELECT »device« GROUP BY device {_W}",
    ),
    Reason(
        "not-grouped",
        "{0} is neither an aggregate nor in GROUP BY",
        "Group by it, or aggregate it.",
        f"SELECT »device«, count(*) AS n {_W}",
    ),
    Reason(
        "without-name",
        "{0} has no name",
        "Write AS and a name.",
        f"SELECT »count«(*) {_W}",
    ),
    Reason(
        "same-name",
        "two columns of the result are named {0}",
        "Use distinct names.",
        f"SELECT count(*) AS n, sum(items) AS »n« {_W}",
    ),
    Reason(
        "nested-aggregate",
        "{0} is used inside another expression",
        "Select aggregates without further operations, and compute with their results.",
        f"SELECT »sum«(items) / 2 AS half {_W}",
    ),
    Reason(
        "aggregate-arguments",
        "{0} does not take {1}",
        "Aggregates take one argument: sum and avg numbers; min and max also booleans, dates and timestamps; count all "
        "types.",
        f"SELECT sum(»country«) AS total {_W}",
    ),
    Reason(
        "distinct",
        "DISTINCT requires an unbounded set of all values of a group",
        "Group by the column, and count the results of a window; or use approx_count_distinct in the application.",
        f"SELECT »count«(DISTINCT user) AS users {_W}",
    ),
    Reason(
        "having",
        "{0}",
        "HAVING may only use selected aggregates, by name: select the aggregate, with a name that differs from all "
        "columns. Use WHERE for conditions on columns.",
        f"SELECT device, count(*) AS n GROUP BY device HAVING »sum«(items) > 10 {_W}",
    ),
    Reason(
        "remember",
        "remember {0}",
        "It returns the value of a selected aggregate in the previous window of the group: SELECT count(*) AS n, "
        "remember(n) AS before; or in HAVING.",
        f"SELECT count(*) AS n, »remember«(items) AS before {_W}",
    ),
    Reason(
        "group-by",
        "{0} is not supported in GROUP BY",
        "Group by columns of type boolean, integer, decimal, string, date or timestamp, or by expressions of these "
        "types.",
        f"SELECT amount, count(*) AS n GROUP BY »amount« {_W}",
    ),
    # Expressions.
    Reason(
        "unknown-column",
        "column {0} does not exist",
        "The columns are: {1}.",
        f"SELECT count(*) AS n WHERE »nation« = 'SE' {_W}",
    ),
    Reason(
        "column-type",
        "column {0} is {1}, which queries cannot read",
        "They read booleans, numbers (decimals of up to 18 digits), strings, dates and timestamps. Add a column of one "
        "of these types in the application.",
        f"SELECT count(*) AS n WHERE »tags« IS NOT NULL {_W}",
    ),
    Reason(
        "function",
        "{0} is not a function of standing queries",
        "User-defined functions, functions with side effects, and functions whose time depends on more than the length "
        "of their arguments are not allowed.",
        f"SELECT count(*) AS n WHERE »reflect«('java.lang.Runtime', 'exit') = '1' {_W}",
    ),
    Reason(
        "regular-expression",
        "a regular expression has an unbounded run time, and its meaning differs between engines",
        "Use LIKE, startswith, endswith or contains with a text.",
        f"SELECT count(*) AS n WHERE »country« RLIKE '(a+)+$' {_W}",
    ),
    Reason(
        "text-argument",
        "{0} requires a text literal",
        "Write the text in quotation marks.",
        f"SELECT count(*) AS n WHERE country LIKE »device« {_W}",
    ),
    Reason(
        "types",
        "{0} cannot be applied to {1}",
        "Use two values of one type. Numbers are compared with numbers, texts with texts, and dates and times also "
        "with text literals of a date or a time.",
        f"SELECT count(*) AS n WHERE »country« > 5 {_W}",
    ),
    Reason(
        "condition",
        "{0} is not a condition: its type is {1}",
        "Compare it with a value.",
        f"SELECT count(*) AS n WHERE »items« {_W}",
    ),
    Reason(
        "may-fail",
        "{0} may fail for some values, and a standing query cannot report errors",
        "Use try_add, try_subtract, try_multiply or try_divide, which return NULL; or cast to double.",
        f"SELECT sum(»items« + 1) AS total {_W}",
    ),
    Reason(
        "cast",
        "a cast from {0} to {1} may fail, or its meaning differs between engines",
        "Cast numbers to double, integers to larger integers, and timestamps to dates.",
        f"SELECT count(*) AS n WHERE CAST(»country« AS INT) = 5 {_W}",
    ),
    Reason(
        "null-literal",
        "a comparison with NULL is never true",
        "Use IS NULL or IS NOT NULL.",
        f"SELECT count(*) AS n WHERE »country« = NULL {_W}",
    ),
    Reason(
        "literal",
        "{0} is not a valid value of a supported type",
        "Correct it.",
        f"SELECT count(*) AS n WHERE user > »99999999999999999999« {_W}",
    ),
    # Limits.
    Reason(
        "long-list",
        "a list has {0} values; at most {1} are allowed",
        "Add a column in the application that marks the rows, and filter by it.",
        f"SELECT count(*) AS n WHERE »user« IN (0⟪, #⟫250) {_W}",
    ),
    Reason(
        "many-aggregates",
        "it has {0} aggregates; at most {1} are allowed",
        "Split it into several queries.",
        f"SELECT »count«(*) AS n⟪, max(items) AS n#⟫16 {_W}",
    ),
    Reason(
        "many-groups",
        "it has {0} group columns; at most {1} are allowed",
        "Split it into several queries.",
        f"SELECT count(*) AS n GROUP BY »user«, device, country, items, price {_W}",
    ),
    Reason(
        "cost",
        "it costs {0}; at most {1} is allowed",
        "Use fewer aggregates, fewer windows of a row, or shorter conditions.",
        f"»SELECT« count(*) AS n WHERE user % 1 = 0⟪ OR items % # = 7⟫127 {_W}",
    ),
)
_BY_SLUG: Final = {reason.slug: reason for reason in REASONS}


def refused(slug: str, *about: Any, at: int | None) -> QueryRefused:
    """The refusal for a reason. ``at``: its position, from 0."""
    reason = _BY_SLUG[slug]
    sentence, fix = reason.sentence.format(*about), reason.fix.format(*about)
    place = "In the query:" if at is None else f"At character {at + 1} of the query:"
    return QueryRefused(f"{place} {sentence}. {fix} ({slug})", reason=slug, position=None if at is None else at + 1)
