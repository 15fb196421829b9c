"""Refusals of standing queries: the example of each reason, hostile texts, and the page in the documentation."""

from __future__ import annotations

import pytest

from epochal.errors import QueryRefused
from epochal.standing_queries.binding import bound
from epochal.standing_queries.query import DEFAULT
from epochal.standing_queries.refusals import EXAMPLE_COLUMNS, REASONS
from tests.kit.refused_queries import page, split_example
from tests.kit.written import OF_STANDING_QUERIES

WINDOW = "WINDOW '5 minutes'"


def refusal(text: str) -> QueryRefused:
    with pytest.raises(QueryRefused) as refused:
        bound(text, EXAMPLE_COLUMNS)
    return refused.value


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.slug)
def test_each_example_is_refused_with_its_position_and_reason(reason: object) -> None:
    slug, example = reason.slug, reason.example  # type: ignore[attr-defined]
    text, start = split_example(example)
    refused = refusal(text)
    assert (refused.reason, refused.position) == (slug, start + 1)
    assert refused.message.startswith(f"At character {start + 1} of the query: ")
    assert refused.message.endswith(f"({slug})")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"SELECT count(*) AS n WHERE {'(' * 390}1{')' * 390} = 1 {WINDOW}", "too-deep"),
        (f"SELECT count(*) AS n WHERE {'NOT ' * 390}true {WINDOW}", "too-deep"),
        (f"SELECT count(*) AS n WHERE {'- ' * 390}items = 1 {WINDOW}", "too-deep"),
        (f"SELECT count(*) AS n WHERE {'CASE WHEN true THEN ' * 150}1 {'END ' * 150} = 1 {WINDOW}", "too-deep"),
        (f"SELECT count(*) AS n WHERE {' + '.join(['amount'] * 300)} > 1 {WINDOW}", "too-deep"),
        (f"SELECT count(*) AS n WHERE user IN ({', '.join(map(str, range(300)))}) {WINDOW}", "long-list"),
        (f"SELECT count(*) AS n WHERE user IN ({', '.join(map(str, range(900)))}) {WINDOW}", "too-long"),
        (f"SELECT count(*) AS n WHERE country = '{'x' * 5_000}' {WINDOW}", "too-long"),
        (f"SELECT count(*) AS n WHERE {' OR '.join(f'items % {n} = 0' for n in range(1, 130))} {WINDOW}", "cost"),
        (f"SELECT {', '.join(f'sum(items) AS s{n}' for n in range(17))} {WINDOW}", "many-aggregates"),
        (f"SELECT count(*) AS n GROUP BY user, device, country, items, price {WINDOW}", "many-groups"),
        (f"SELECT count(*) AS n CROSS JOIN others {WINDOW}", "clause"),
        (f"SELECT count(*) AS n, count(*) OVER () AS m {WINDOW}", "nested-aggregate"),
        (f"SELECT count(*) AS n LATERAL VIEW explode(tags) t AS tag {WINDOW}", "clause"),
        (f"SELECT count(*) AS n ORDER BY n {WINDOW}", "clause"),
        (f"SELECT count(*) AS n LIMIT 3 {WINDOW}", "clause"),
        (f"SELECT count(*) AS n QUALIFY n > 1 {WINDOW}", "clause"),
        (f"SELECT count(*) AS n HAVING items > 1 {WINDOW}", "having"),
        (f"SELECT sum(items) AS items HAVING items > 1 {WINDOW}", "having"),
        (f"SELECT sum(items) AS total HAVING sum(price) > 1 {WINDOW}", "having"),
        (f"SELECT count(*) AS n HAVING n {WINDOW}", "condition"),
        (f"SELECT count(*) AS n HAVING others > 1 {WINDOW}", "unknown-column"),
        (f"SELECT count(*) AS n, n - remember(n) AS more {WINDOW}", "nested-aggregate"),
        (f"SELECT count(*) AS n, remember(n, 2) AS before {WINDOW}", "remember"),
        (f"SELECT count(*) AS n, remember(sum(items)) AS before {WINDOW}", "remember"),
        (f"SELECT count(*) AS n, remember(n) {WINDOW}", "without-name"),
        (f"SELECT count(*) AS n WHERE remember(n) > 2 {WINDOW}", "remember"),
        (f"SELECT count(*) AS n GROUP BY remember(n) {WINDOW}", "remember"),
        (f"SELECT count(*) AS n HAVING n > 2 * remember(n) {WINDOW}", "may-fail"),
        (f"SELECT DISTINCT count(*) AS n {WINDOW}", "clause"),
        (f"SELECT /*+ BROADCAST(x) */ count(*) AS n {WINDOW}", "clause"),
        (f"WITH x AS (SELECT 1) SELECT count(*) AS n {WINDOW}", "not-a-select"),
        (f"SELECT count(*) AS n UNION SELECT 1 {WINDOW}", "subquery"),
        (f"SELECT count(*) AS n GROUP BY ALL {WINDOW}", "group-by"),
        (f"SELECT count(*) AS n GROUP BY 1 {WINDOW}", "group-by"),
        (f"SELECT count(*) AS n WHERE sleep(10) = 1 {WINDOW}", "function"),
        (f"SELECT count(*) AS n WHERE java_method('a', 'b') = 'c' {WINDOW}", "function"),
        (f"SELECT count(*) AS n WHERE rand() > 0.5 {WINDOW}", "function"),
        (f"SELECT count(*) AS n WHERE at < current_timestamp() {WINDOW}", "function"),
        (f"SELECT count(*) AS n WHERE regexp_like(country, '(a+)+$') {WINDOW}", "regular-expression"),
        (f"SELECT count(*) AS n WHERE regexp_replace(country, 'a', 'b') = 'b' {WINDOW}", "regular-expression"),
        (f"SELECT count(*) AS n WHERE country LIKE 'S!%' ESCAPE '!' {WINDOW}", "function"),
        (f"SELECT count(*) AS n WHERE items BETWEEN SYMMETRIC 2 AND 1 {WINDOW}", "function"),
        (f"SELECT count(*) AS n WHERE country LIKE ANY ('a', 'b') {WINDOW}", "text-argument"),
        (f"SELECT count(*) AS n WHERE other.country = 'SE' {WINDOW}", "unknown-column"),
        (f"SELECT count(*) AS n WHERE price * 2 > 3 {WINDOW}", "may-fail"),
        (f"SELECT count(*) AS n WHERE items / user > 3 {WINDOW}", "may-fail"),
        (f"SELECT count(*) AS n WHERE items / 0 > 3 {WINDOW}", "may-fail"),
        (f"SELECT max(country) AS last {WINDOW}", "aggregate-arguments"),
        ("SELECT count(*) AS n WINDOW w AS (PARTITION BY user)", "no-window"),
        ("SELECT count(*) AS n WINDOW '1 month'", "window-interval"),
        ("SELECT count(*) AS n WINDOW '1 hour' SLIDE '10 seconds'", "window-slide"),
        ("SELECT count(*) AS n WHERE country = 'SE WINDOW '5 minutes'", "syntax"),
        ("", "not-a-select"),
        ("SELECT", "no-window"),
        (f"SELECT {WINDOW}", "no-aggregate"),
    ],
    ids=lambda value: value[:60] if " " in value else value,
)
def test_hostile_and_malformed_queries_are_refused(text: str, reason: str) -> None:
    refused = refusal(text)
    assert refused.reason == reason, refused.message


def test_min_and_max_of_strings_are_refused_by_name() -> None:
    for aggregate in ("min(country)", "max(device)", "max(IF(items > 2, country, device))"):
        refused = refusal(f"SELECT {aggregate} AS x {WINDOW}")
        assert refused.reason == "aggregate-arguments"
        assert f"{aggregate[:3]} does not take string. Aggregates take one argument: " in refused.message


def test_the_author_limits_windows() -> None:
    from dataclasses import replace

    limits = replace(DEFAULT, least_window=60_000_000, greatest_window=120_000_000)
    assert bound("SELECT count(*) AS n WINDOW '90 seconds'", EXAMPLE_COLUMNS, limits).size == 90_000_000
    with pytest.raises(QueryRefused, match="'5 minutes' is not between 1 minute and 2 minutes"):
        bound(f"SELECT count(*) AS n {WINDOW}", EXAMPLE_COLUMNS, limits)


def test_the_page_lists_every_refusal() -> None:
    assert OF_STANDING_QUERIES.read() == page(), "python -m tests.kit.written"
