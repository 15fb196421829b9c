"""Invalid uses of ``feed`` and ``serve`` of programs, with the messages that authors receive.

docs/reference/programs.md shows all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epochal import Pipeline
from epochal.connectors import generator
from epochal.errors import EpochalError
from epochal.pipeline.analysis import analyse
from epochal.programs import Counter, Map, Partitioned, entry, program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = {"account": "string(id)", "amount": "id", "at": "timestamp_seconds(id)"}


@program
class Accounts:
    """The example of docs/reference/programs.md."""

    balances: Partitioned[Map[str, int]]

    @entry
    def pay_in(self, account: str, amount: int) -> None:
        self.balances.add(account, amount)

    @entry
    def draw(self, account: str, amount: int) -> int:
        if self.balances.get(account, 0) < amount:
            raise ValueError("not enough")
        self.balances.add(account, -amount)
        return self.balances.get(account, 0)


@program
class Clicks:
    """A program with names that are valid for streams and invalid for callers."""

    pages: Partitioned[Counter[str]]

    @entry
    def addClick(self, page: str) -> None:
        self.pages.add(page)

    @entry
    def numbered(self, page: str, sequence: int) -> None:
        self.pages.add(page, sequence)


@program
class Capitals:
    """A program with a state element whose name is not a valid operator name."""

    Pages: Partitioned[Counter[str]]

    @entry
    def add(self, page: str) -> None:
        self.Pages.add(page)


WRITTEN = (
    "pipeline.program(dict)",
    'pipeline.program(Accounts, name="My accounts")',
    "pipeline.program(Capitals).serve()",
    "accounts = pipeline.program(Accounts)",
    "accounts.serve(); pipeline.program(Accounts).serve()",
    'accounts.feed("pay_out", paid, order_by="at")',
    'accounts.feed("pay_in", "paid", order_by="at")',
    'accounts.feed("pay_in", of_another_pipeline, order_by="at")',
    'accounts.feed("pay_in", paid, order_by="at"); accounts.feed("pay_in", drawn, order_by="at")',
    'accounts.feed("pay_in", paid.select("account", "at"), order_by="at")',
    'accounts.feed("pay_in", paid.with_columns(amount="amount / 2"), order_by="at")',
    'accounts.feed("pay_in", paid, order_by=())',
    'accounts.feed("pay_in", paid, order_by="time")',
    'accounts.feed("pay_in", paid.with_columns(rate="amount / 2"), order_by="rate")',
    'accounts.feed("pay_in", paid, order_by="at"); accounts.feed("draw", drawn, order_by=("at", "amount"))',
    'accounts.feed("pay_in", paid, order_by="at"); accounts.feed("draw", drawn, order_by="amount")',
    'accounts.feed("draw", drawn.with_columns(value="1"), order_by="at", keep="value")',
    'accounts.feed("draw", drawn.with_columns(tags="map(account, 1)"), order_by="at", keep="tags")',
    'accounts.serve("draw"); accounts.results("draw"); accounts.feed("pay_in", paid, order_by="at")',
    'accounts.feed("pay_in", paid, order_by="at"); accounts.results("draw")',
    'accounts.serve("withdraw")',
    'accounts.feed("draw", drawn, order_by="at"); accounts.serve("draw")',
    'accounts.serve("draw"); accounts.results("draw"); accounts.serve("pay_in")',
    'accounts.serve("draw"); pipeline.entry("draw", {})',
    'pipeline.program(Clicks).serve("addClick")',
    'pipeline.program(Clicks).serve("numbered")',
)
"""Python code over ``pipeline``, its program ``accounts``, and its streams ``paid`` and ``drawn``."""


def refusals(spark: SparkSession) -> dict[str, str | None]:
    """Return the error message of each text; ``None`` if it is accepted."""
    return {text: _refusal(text, spark) for text in WRITTEN}


def _refusal(text: str, spark: SparkSession) -> str | None:
    try:
        pipeline, another = Pipeline("accounts"), Pipeline("another")
        named = [name for name in ("paid", "drawn") if name in text.replace('"paid"', "")]
        streams: dict[str, Any] = {name: pipeline.read(name, generator.source(COLUMNS)) for name in named}
        streams["of_another_pipeline"] = another.read("paid", generator.source(COLUMNS))
        accounts = pipeline.program(Accounts) if "accounts." in text else None
        names = {"Accounts": Accounts, "Clicks": Clicks, "Capitals": Capitals}
        exec(text, {"pipeline": pipeline, "accounts": accounts, **streams, **names})
        analyse(pipeline.graph(), spark)
    except EpochalError as error:
        return error.message
    return None


def page(refusals: Mapping[str, str | None]) -> str:
    """Return Markdown with each text, one statement per line, and its message."""
    parts = [f"{text.replace('; ', chr(10))}\n# {message}" for text, message in refusals.items()]
    return "```text\n" + "\n\n".join(parts) + "\n```\n"
