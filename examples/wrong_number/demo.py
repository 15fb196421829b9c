"""``python -m examples.wrong_number.demo``: a private control plane, five days of sales, and one wrong number.

Runs the commands of docs/tutorials/one-wrong-number.md. Exits 0 only if state, table and folder equal the totals that
plain Python computes, and leaves no process running.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from epochal.client import Client
from epochal.testing.servers.control_plane import ControlPlane, control_plane

HERE = Path(__file__).parent
SHOPS = ("lyon", "nantes", "brest", "lille")
DAYS = ("2024-03-04", "2024-03-05", "2024-03-06", "2024-03-07", "2024-03-08")
CENTS = ("lyon", "2024-03-07")
"""The shop whose till reports amounts in cents, and the first day on which it does."""


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="epochal-example-") as folder,
        control_plane(Path(folder)) as plane,
        plane.client() as client,
    ):
        return Story(plane, client, Path(folder)).run()


class Story:
    """The steps of the tutorial."""

    def __init__(self, plane: ControlPlane, client: Client, folder: Path) -> None:
        self.plane, self.client, self.folder = plane, client, folder
        self.input, self.output = folder / "sales", folder / "changes"
        self.input.mkdir()
        self.database = folder / "shops.sqlite"

    def run(self) -> int:
        self.five_days()
        self.typed("get", "sales", "revenue", "lyon")
        self.typed("get", "sales", "revenue", "lyon", "--history")
        self.typed("get", "sales", "revenue", "lyon", "--blame")
        self.typed("diff", "sales", "3", "4")
        accepted = ("--accept-changed", "revenue.total")
        self.typed("preflight", "sales", str(HERE / "fixed.py"), "--trial", "2", *accepted)
        self.typed("stop", "sales", "--savepoint", "wrong")
        self.typed("rollback", "sales", "--epoch", "3", "--move-aside", "--yes", "-m", "lyon counts in cents")
        self.typed("upgrade", "sales", str(HERE / "fixed.py"), *accepted, "-m", "amounts in cents")
        self.typed("start", "sales")
        self.until(lambda: self.state() == expected(), "the days to be counted again")
        self.typed("get", "sales", "revenue", "lyon")
        self.typed("diff", "sales", "wrong", "head")
        self.typed("lineage", "sales")
        return self.compare()

    def five_days(self) -> None:
        """Write five days of sales, one epoch each."""
        self.typed(
            *("submit", str(HERE / "pipeline.py"), "--name", "sales", "--wait"),
            *("-p", f"input={self.input}", "-p", f"output={self.output}", "-p", f"database=sqlite:///{self.database}"),
            *("--set", "epoch_interval_seconds=0.1"),
        )
        for number, day in enumerate(DAYS, start=1):
            hidden = self.input / f".{day}"
            hidden.write_text("".join(json.dumps(sale) + "\n" for sale in sales_of(day)))
            hidden.rename(self.input / f"{day}.json")
            self.until(lambda number=number: self.head() == number, f"epoch {number}")  # type: ignore[misc]

    def typed(self, *arguments: str) -> None:
        """Run a command, and print it with its output. Exits if it fails."""
        shown = " ".join(argument.replace(str(HERE.parent.parent), ".") for argument in arguments)
        print(f"\n$ epochal {shown.replace(str(self.folder), '~')}", flush=True)
        done = self.plane.run(*arguments)
        print(done.stdout.rstrip().replace(str(self.folder), "~"), flush=True)
        if done.returncode != 0:
            raise SystemExit(f"epochal {arguments[0]} ended with {done.returncode}")

    def until(self, condition: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + 240
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"waited too long for {name}")
            time.sleep(0.1)

    def head(self) -> int:
        head = self.client.applications.get("sales").head
        return head.epoch if head else 0

    def state(self) -> dict[str, tuple[int, Decimal]]:
        found = self.client.application("sales").state("revenue").lookup([{"shop": shop} for shop in SHOPS])
        return {shop: pair(value) for shop, value in zip(SHOPS, found.values, strict=True) if value is not None}

    def compare(self) -> int:
        """Compare state, table and folder with plain Python."""
        with sqlite3.connect(self.database) as connection:
            rows = connection.execute("SELECT shop, sales, total FROM revenue").fetchall()
        table = {shop: (int(sales), Decimal(str(total))) for shop, sales, total in rows}
        right = expected()
        found = {"state": self.state(), "table": table, "folder": self.shown()}
        for where, values in found.items():
            print(f"{where}: {'as it should be' if values == right else f'{values}, not {right}'}")
        return 0 if all(values == right for values in found.values()) else 1

    def shown(self) -> dict[str, tuple[int, Decimal]]:
        """Return the latest row of each shop in the output folder."""
        latest: dict[str, tuple[int, Decimal]] = {}
        for file in sorted(self.output.glob("epoch=*/*.json")):
            for line in file.read_text().splitlines():
                row = json.loads(line, parse_float=Decimal)
                latest[row["shop"]] = pair(row)
        return latest


def sales_of(day: str) -> list[dict[str, Any]]:
    number = DAYS.index(day) + 1
    sales = []
    for shop in SHOPS:
        for sale in range(3 * number):
            cents = 1250 + 100 * len(shop) + 7 * sale
            in_cents = shop == CENTS[0] and day >= CENTS[1]
            amount = str(cents) if in_cents else f"{cents / 100:.2f}"
            sales.append({"shop": shop, "day": day, "amount": amount, "unit": "cents" if in_cents else "euros"})
    return sales


def expected() -> dict[str, tuple[int, Decimal]]:
    """Return the number of sales and the total in euros, by shop."""
    amounts: dict[str, list[Decimal]] = defaultdict(list)
    for day in DAYS:
        for sale in sales_of(day):
            amounts[sale["shop"]].append(Decimal(sale["amount"]) / (100 if sale["unit"] == "cents" else 1))
    return {shop: (len(of_shop), sum(of_shop, Decimal(0))) for shop, of_shop in amounts.items()}


def pair(row: Mapping[str, Any]) -> tuple[int, Decimal]:
    return int(row["sales"]), Decimal(str(row["total"]))


if __name__ == "__main__":
    sys.exit(main())
