"""What a standing query is refused for: each reason with its sentence, what to do instead, and an example.

The examples are run by a test and stand in docs/standing-queries.md.
"""

from __future__ import annotations

import re
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
_REPEATED: Final = re.compile("⟪(.*?)⟫([0-9]+)")
_W: Final = "WINDOW '5 minutes'"


@dataclass(frozen=True)
class Reason:
    """``sentence``: with places for what it is about. ``example``: a query that is refused for it, over the columns
    of :data:`EXAMPLE_COLUMNS`; the refusal is at the first character of what stands between ``»`` and ``«``. What
    stands in ``⟪..⟫20`` is there 20 times, with its number in place of ``#``."""

    slug: str
    sentence: str
    fix: str
    example: str


REASONS: Final[tuple[Reason, ...]] = (
    # The statement.
    Reason("syntax", "it has {0}", "Correct it.", f"SELECT count(*) AS n WHERE items »>« {_W}"),
    Reason(
        "not-a-select",
        "it is no SELECT",
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
        "Make several queries of it, or do the first steps in the application.",
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
        "it has a backslash, which different systems read differently",
        "Write the character itself; put a text with quotation marks into the other kind of them.",
        f"SELECT count(*) AS n WHERE country = 'S»\\«E' {_W}",
    ),
    Reason(
        "clause",
        "{0} has no place in a standing query",
        "It has SELECT, WHERE, GROUP BY, HAVING and WINDOW, and reads the stream that it is asked of.",
        f"SELECT count(*) AS n FROM »events« {_W}",
    ),
    Reason(
        "subquery",
        "it has a query within the query",
        "Standing queries have neither joins nor subqueries. Join in the application.",
        f"SELECT count(*) AS n WHERE user IN (»SELECT« 1) {_W}",
    ),
    # Windows.
    Reason(
        "no-window",
        "it does not end with its window",
        "End it with WINDOW '5 minutes', or with WINDOW '1 hour' SLIDE '5 minutes'.",
        "SELECT count(*) AS n»«",
    ),
    Reason(
        "window-interval",
        "{0} is no length of a window",
        "Give an interval of days or shorter units, such as '5 minutes'.",
        "SELECT count(*) AS n WINDOW »'a while'«",
    ),
    Reason(
        "window-length",
        "{0} is not between {1} and {2}, as the application declares",
        "Choose a length between them.",
        "SELECT count(*) AS n WINDOW »'1 second'«",
    ),
    Reason(
        "window-slide",
        "windows of {0} cannot slide by {1}",
        "The slide divides the length, and a row is in at most 60 windows.",
        "SELECT count(*) AS n WINDOW '1 hour' SLIDE »'7 minutes'«",
    ),
    # What is selected.
    Reason(
        "no-aggregate",
        "it selects no aggregate",
        "A standing query gives aggregates of windows: count, sum, avg, min, max, count_if.",
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
        "Give each its own name.",
        f"SELECT count(*) AS n, sum(items) AS »n« {_W}",
    ),
    Reason(
        "nested-aggregate",
        "{0} is used inside another expression",
        "Select aggregates by themselves, and reckon with their results.",
        f"SELECT »sum«(items) / 2 AS half {_W}",
    ),
    Reason(
        "aggregate-arguments",
        "{0} does not take {1}",
        "Of one argument: sum and avg take numbers; min and max also booleans, dates and timestamps; count takes all.",
        f"SELECT sum(»country«) AS total {_W}",
    ),
    Reason(
        "distinct",
        "DISTINCT needs a set of all values of a group, which has no bound",
        "Group by the column, and count the results of a window; or keep approx_count_distinct in the application.",
        f"SELECT »count«(DISTINCT user) AS users {_W}",
    ),
    Reason(
        "having",
        "{0}",
        "It reads aggregates that are selected, by their names: select it, with a name that no column has. Conditions "
        "on columns belong into WHERE.",
        f"SELECT device, count(*) AS n GROUP BY device HAVING »sum«(items) > 10 {_W}",
    ),
    Reason(
        "remember",
        "remember {0}",
        "It gives what an aggregate that is selected was in the group's window before: SELECT count(*) AS n, "
        "remember(n) AS before; or in HAVING.",
        f"SELECT count(*) AS n, »remember«(items) AS before {_W}",
    ),
    Reason(
        "group-by",
        "{0} cannot be grouped by",
        "Group by columns of type boolean, integer, decimal, string, date or timestamp, or by expressions of these "
        "types.",
        f"SELECT amount, count(*) AS n GROUP BY »amount« {_W}",
    ),
    # Expressions.
    Reason(
        "unknown-column",
        "there is no column {0}",
        "There are: {1}.",
        f"SELECT count(*) AS n WHERE »nation« = 'SE' {_W}",
    ),
    Reason(
        "column-type",
        "column {0} is {1}, which queries cannot read",
        "They read booleans, numbers (decimals of up to 18 digits), strings, dates and timestamps. Make such a column "
        "in the application.",
        f"SELECT count(*) AS n WHERE »tags« IS NOT NULL {_W}",
    ),
    Reason(
        "function",
        "{0} is none of the functions of standing queries",
        "They have no functions of authors, none with side effects, and none whose time depends on more than the "
        "length of its arguments.",
        f"SELECT count(*) AS n WHERE »reflect«('java.lang.Runtime', 'exit') = '1' {_W}",
    ),
    Reason(
        "regular-expression",
        "a regular expression may take forever, and means different things to different engines",
        "Use LIKE, startswith, endswith or contains with a text.",
        f"SELECT count(*) AS n WHERE »country« RLIKE '(a+)+$' {_W}",
    ),
    Reason(
        "text-argument",
        "{0} takes a text that stands in the query",
        "Write it in quotation marks.",
        f"SELECT count(*) AS n WHERE country LIKE »device« {_W}",
    ),
    Reason(
        "types",
        "{0} cannot be applied to {1}",
        "Make both of one type. Numbers are compared with numbers, texts with texts; a text that says a date or a time "
        "may stand beside one.",
        f"SELECT count(*) AS n WHERE »country« > 5 {_W}",
    ),
    Reason(
        "condition",
        "{0} is no condition: it is {1}",
        "Compare it with something.",
        f"SELECT count(*) AS n WHERE »items« {_W}",
    ),
    Reason(
        "may-fail",
        "{0} fails for some values, and nobody is there to be told",
        "Use try_add, try_subtract, try_multiply or try_divide, which give NULL; or cast to double.",
        f"SELECT sum(»items« + 1) AS total {_W}",
    ),
    Reason(
        "cast",
        "a cast from {0} to {1} may fail or means different things to different engines",
        "Casts go from numbers to double, from integers to larger ones, and from timestamps to dates.",
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
        "{0} is no value of a type that queries have",
        "Correct it.",
        f"SELECT count(*) AS n WHERE user > »99999999999999999999« {_W}",
    ),
    # Limits.
    Reason(
        "long-list",
        "a list has {0} values; at most {1} are allowed",
        "Mark the rows in the application, and filter by the mark.",
        f"SELECT count(*) AS n WHERE »user« IN (0⟪, #⟫250) {_W}",
    ),
    Reason(
        "many-aggregates",
        "it has {0} aggregates; at most {1} are allowed",
        "Make several queries of it.",
        f"SELECT »count«(*) AS n⟪, max(items) AS n#⟫16 {_W}",
    ),
    Reason(
        "many-groups",
        "it has {0} group columns; at most {1} are allowed",
        "Make several queries of it.",
        f"SELECT count(*) AS n GROUP BY »user«, device, country, items, price {_W}",
    ),
    Reason(
        "cost",
        "it costs {0}; at most {1} is allowed",
        "Ask for fewer aggregates, fewer windows of a row, or shorter conditions.",
        f"»SELECT« count(*) AS n WHERE user % 1 = 0⟪ OR items % # = 7⟫127 {_W}",
    ),
)
_BY_SLUG: Final = {reason.slug: reason for reason in REASONS}


def refused(slug: str, *about: Any, at: int | None) -> QueryRefused:
    """The refusal for a reason. ``at``: where, counted from 0."""
    reason = _BY_SLUG[slug]
    sentence, fix = reason.sentence.format(*about), reason.fix.format(*about)
    place = "In the query:" if at is None else f"At character {at + 1} of the query:"
    return QueryRefused(f"{place} {sentence}. {fix} ({slug})", reason=slug, position=None if at is None else at + 1)


def split_example(example: str) -> tuple[str, int]:
    """The query of an example without its marks, and where it is refused, counted from 0."""
    text = _REPEATED.sub(_written_out, example)
    return text.replace("»", "").replace("«", ""), text.index("»")


def page() -> str:
    """Markdown: for each reason an example, and what is answered to it."""
    from epochal.standing_queries.binding import bound

    lines = []
    for reason in REASONS:
        try:
            bound(split_example(reason.example)[0], EXAMPLE_COLUMNS)
        except QueryRefused as refusal:
            shown = _REPEATED.sub(_abridged, reason.example).replace("»", "").replace("«", "")
            lines.append(f"**`{reason.slug}`**\n\n```text\n{shown}\n{refusal.message}\n```\n")
    return "\n".join(lines)


def _written_out(repeated: re.Match[str]) -> str:
    part, times = repeated.groups()
    return "".join(part.replace("#", str(number)) for number in range(1, int(times) + 1))


def _abridged(repeated: re.Match[str]) -> str:
    part, times = repeated.groups()
    first, second = (part.replace("#", str(number)) for number in (1, 2))
    return f"{first}{second} .. [{times} times] .. "
