"""Random standing queries from a grammar, and rows with values that are special to some engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

COLUMNS = {
    "user": "bigint",
    "device": "string",
    "country": "string",
    "amount": "double",
    "rate": "float",
    "price": "decimal(10,2)",
    "items": "int",
    "small": "smallint",
    "paid": "boolean",
    "day": "date",
    "at": "timestamp",
}
SCHEMA = pa.schema(
    [
        ("user", pa.int64()),
        ("device", pa.string()),
        ("country", pa.string()),
        ("amount", pa.float64()),
        ("rate", pa.float32()),
        ("price", pa.decimal128(10, 2)),
        ("items", pa.int32()),
        ("small", pa.int16()),
        ("paid", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
BEGIN = datetime(2024, 2, 28, 23, 50, tzinfo=UTC)
_NUMBERS = ("user", "amount", "rate", "price", "items", "small")
_TIMES = ("hour", "minute", "year", "month", "day", "dayofweek")
_GROUPS = ("device", "country", "paid", "day", "items", "price", "date(at)")
_TEXTS = ("device", "country")


def rows(random: random.Random, count: int, minutes: float = 60) -> pa.Table:
    """Return random rows. Every column except the time contains nulls."""
    special = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5, 2.5, 1e300)

    def maybe(value: Callable[[], Any]) -> Any:
        return None if random.random() < 0.15 else value()

    table = [
        {
            "user": maybe(lambda: random.choice((-(2**63), 2**63 - 1, 0, 1, 2, 3, 2**53 + 1, random.randrange(100)))),
            "device": maybe(lambda: random.choice(("phone", "tablet", "", "Ünï", "a%b_c", 'q"uote', "phone "))),
            "country": maybe(lambda: random.choice(("SE", "DE", "se", "S", "SEX"))),
            "amount": maybe(lambda: random.choice((*special, random.uniform(-10, 10)))),
            "rate": maybe(lambda: random.choice((*special[:7], 0.1, random.randrange(10)))),
            "price": maybe(lambda: Decimal(random.randrange(-1000, 1000)).scaleb(-2)),
            "items": maybe(lambda: random.choice((-(2**31), 2**31 - 1, 0, 1, 2, 3, -7))),
            "small": maybe(lambda: random.choice((-32768, 32767, 0, 1, 2))),
            "paid": maybe(lambda: random.random() < 0.5),
            "day": maybe(lambda: (BEGIN + timedelta(days=random.randrange(-2, 3))).date()),
            "at": BEGIN + timedelta(microseconds=random.randrange(int(minutes * 60_000_000))),
        }
        for _ in range(count)
    ]
    return pa.Table.from_pylist(table, SCHEMA)


class Grammar:
    """Random valid queries; over time they use every rule of the language."""

    def __init__(self, random: random.Random) -> None:
        self._random = random

    def condition(self, depth: int = 2) -> str:
        choose = self._random.choice
        if depth and self._random.random() < 0.4:
            one, other = self.condition(depth - 1), self.condition(depth - 1)
            return choose((f"({one} AND {other})", f"({one} OR {other})", f"NOT ({one})", f"({one}) <=> ({other})"))
        comparison = choose(("=", "<>", "<", "<=", ">", ">=", "<=>", "==", "!="))
        return choose(
            (
                f"{self.number(depth)} {comparison} {self.number(depth)}",
                f"{self.number(depth)} {comparison} {self.number(depth)}",
                f"{choose(_TEXTS)} {comparison} '{choose(('SE', 'phone', '', 'Ünï', 'se'))}'",
                f"{choose(_TEXTS)} IN ('SE', 'DE', 'phone')",
                f"{choose(_TEXTS)} LIKE '{choose(('S%', '%h_ne', '_', '%', 'a%b_c', '', '%E%'))}'",
                f"{choose(_TEXTS)} NOT LIKE 'S%'",
                f"{choose(('startswith', 'endswith', 'contains'))}({choose(_TEXTS)}, '{choose(('S', 'e', '', '%'))}')",
                f"{choose(tuple(COLUMNS))} IS {choose(('', 'NOT '))}NULL",
                f"{choose(('items', 'user', 'small'))} IN (1, 2, {choose(('3', '9223372036854775807', '2.0'))})",
                f"{choose(('amount', 'rate'))} IN (0, 1.5)",
                f"{self.number(depth)} BETWEEN {choose(('0', '-1.5'))} AND {choose(('2', '1e10', '3.25'))}",
                f"at {comparison} '2024-02-29{choose(('', ' 00:10', 'T00:10:00.5', ' 00:10:00+01:00'))}'",
                f"day {comparison} DATE '2024-02-28'",
                f"at {comparison} day",
                "paid",
                f"{choose(_TIMES)}(at) {comparison} {choose((0, 2, 5))}",
                f"date(at) {comparison} '2024-02-29'",
            )
        )

    def number(self, depth: int = 1) -> str:
        choose = self._random.choice
        if not depth or self._random.random() < 0.5:
            literals = ("0", "1", "-2", "1.5", "2.50", "1e0", "9007199254740993", "2147483648")
            return choose((*_NUMBERS, *_NUMBERS, choose(literals)))
        one, other = self.number(depth - 1), self.number(depth - 1)
        whole = choose(("items", "user", "small", "3"))
        return choose(
            (
                f"(amount {choose('+-*')} {choose(('items', '2', 'rate', 'price', '1.5', 'user'))})",
                f"(rate {choose('+-*')} rate)",
                f"(rate {choose('+-*')} {choose(('small', '2'))})",
                f"{choose(('items', 'user', 'amount', 'rate'))} / {choose(('2', '-3', '0.5e0'))}",
                f"{choose(('items', 'user', 'small'))} % {choose(('2', '-3', '7'))}",
                f"{choose(('try_add', 'try_subtract', 'try_multiply'))}({whole}, {choose(('items', 'user', '2'))})",
                f"try_divide({choose(('items', 'amount'))}, {choose(('items', 'user', 'amount'))})",
                f"length({choose(_TEXTS)})",
                f"coalesce({choose(('items', 'small'))}, {choose(('0', 'user'))})",
                f"CASE WHEN {self.condition(0)} THEN {one} ELSE {other} END",
                f"CASE country WHEN 'SE' THEN {choose(('items', 'amount'))} WHEN 'DE' THEN 2 END",
                f"IF({self.condition(0)}, {one}, {other})",
                f"CAST({choose(_NUMBERS)} AS DOUBLE)",
                f"CAST({choose(('items', 'small'))} AS BIGINT)",
            )
        )

    def query(self) -> str:
        choose = self._random.choice
        groups = self._random.sample(
            ("device", "country", "paid", "day", "items", "price", "date(at)"), choose((0, 1, 1, 2))
        )
        aggregates = [
            choose(
                (
                    "count(*)",
                    f"count({choose(tuple(COLUMNS))})",
                    f"count_if({self.condition(1)})",
                    f"sum({choose(('items', 'small', 'price'))})",
                    f"sum({choose(('items', 'price'))}) FILTER (WHERE {self.condition(1)})",
                    f"avg({choose(('items', 'small', 'price'))})",
                    f"{choose(('min', 'max'))}({choose((*_NUMBERS, 'paid', 'day', 'at'))})",
                )
            )
            for _ in range(choose((1, 2, 4)))
        ]
        selected = [f"{group} AS g{n}" for n, group in enumerate(groups)]
        selected += [f"{aggregate} AS a{n}" for n, aggregate in enumerate(aggregates)]
        where = f" WHERE {self.condition()}" if self._random.random() < 0.7 else ""
        grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
        having = ""
        if self._random.random() < 0.4:
            n, aggregate = self._random.choice(list(enumerate(aggregates)))
            having = f" HAVING {choose((f'a{n} IS NOT NULL', f'a{n} IS NULL', f'{aggregate} IS NOT NULL'))}"
            if aggregate.startswith(("count", "sum", "avg")):
                literal = choose(("0", "1", "2.5", "40", "1e1"))
                having = f" HAVING {choose((aggregate, f'a{n}'))} {choose(('>', '<=', '=', '<>'))} {literal}"
        if self._random.random() < 0.4:
            n, aggregate = self._random.choice(list(enumerate(aggregates)))
            selected.append(f"remember({choose((aggregate, f'a{n}'))}) AS before")
            is_number = aggregate.startswith(("count", "sum", "avg"))
            if is_number and self._random.random() < 0.5:
                again = choose((f"2e0 * remember(a{n})", f"remember(a{n})", f"coalesce(remember(a{n}), 1)"))
                having = f" HAVING a{n} {choose(('>', '<=', '<=>'))} {again}"
        window = choose(("'5 minutes'", "'1 hour'", "'10 minutes' SLIDE '5 minutes'", "'7 minutes'"))
        return f"SELECT {', '.join(selected)}{where}{grouped}{having} WINDOW {window}"
