"""An application with keys and values that are awkward for a page, behind a real control plane without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from epochal.service.domain.settings import Settings
from epochal.state.table import StateKind
from tests.service.conftest import Plane, StandInSupervisor, free_port, http_client, serving
from tests.service.lookups import StateDriver, table
from tests.service.test_lookups_windows import SLIDING, pane

SCRIPT = "<script>window.wrong=1</script>"
RIGHT_TO_LEFT = "\u202eright to left"
NAMES = (
    SCRIPT,
    '"><img src=x onerror=window.wrong=1>',
    RIGHT_TO_LEFT,
    "long " * 100,
    "",
    "a,b",
    'it\'s "quoted" $HOME `id` \\ !x',
    "line\nbreak\ttab",
    "..",
    "a/b%2Fc",
    "50%",
    "%00",
    "-5",
    "--epoch",
    "star*",
    "=equals",
    "ünïcode 😀",
    None,
)
PLAIN = table("names", StateKind.VALUE, "name string", "length int, note string")
PAIRS = table("pairs", StateKind.VALUE, "origin string, number bigint, flag boolean, day date", "n bigint")
TYPED = table(
    "typed",
    StateKind.VALUE,
    "m decimal(10,2), t timestamp, y binary",
    "big bigint, exact decimal(20,4), at timestamp, raw binary, f double, tags array<string>, "
    "point struct<x:int,s:string>, seen map<string,bigint>, nothing string",
)
LISTED = table("visits.places", StateKind.MAP, "tail string", "late int", sub_key="airport string")
LARGE = table("large", StateKind.VALUE, "id int", "text string")
MANY = table("many", StateKind.VALUE, "id int", "n bigint, label string")
WIDE = table("wide", StateKind.VALUE, "id int", ", ".join(f"column_{number:05} int" for number in range(10_000)))
BIG = 9_007_199_254_740_993
MOMENT = datetime(2013, 1, 31, 5, 15, tzinfo=UTC)
TYPED_ROW = {
    "m": Decimal("12.50"),
    "t": MOMENT,
    "y": b"\x00\xff",
}


def names(epoch: int) -> list[dict[str, Any]]:
    return [{"name": name, "length": epoch * 1000 + len(name or ""), "note": name} for name in NAMES]


@contextmanager
def hostile_state(folder: Path) -> Iterator[tuple[Plane, StateDriver]]:
    """A control plane and the driver of ``flights``, which has committed five epochs."""
    settings = Settings(data=folder / "data", port=free_port())
    supervisor = StandInSupervisor()
    with serving(settings, supervisor) as (control, token), http_client(settings, token) as client:
        plane = Plane(control, client, settings, supervisor, [])
        plane.application()
        tables = (PLAIN, PAIRS, TYPED, LISTED, LARGE, MANY, WIDE, SLIDING)
        driver = StateDriver(plane, tables=tables)
        artifact = plane.get("/v1/applications/flights")["artifact"]
        driver.epoch(
            (PLAIN, names(1)),
            (PAIRS, _pairs(1)),
            (TYPED, [_typed(1)]),
            (LISTED, [{"tail": "N1", "airport": airport, "late": 1} for airport in ("", "JFK", "a,b", SCRIPT)]),
            (LARGE, [{"id": number, "text": chr(97 + number) * 1_000_000} for number in range(8)]),
            (MANY, [{"id": number, "n": number, "label": f"label {number}"} for number in range(100_000)]),
            (WIDE, [_wide(number) for number in range(30)]),
            (SLIDING, [pane("Oslo", minutes, minutes + 1) for minutes in (0, 5, 10)]),
            artifact=artifact,
        )
        for epoch in (2, 3, 4):
            driver.epoch((PLAIN, names(epoch)), (PAIRS, _pairs(epoch)), (TYPED, [_typed(epoch)]), artifact=artifact)
        driver.epoch((PLAIN, [{"name": "a,b"}]), artifact=artifact)
        plane.get("/v1/applications/flights/state/many/keys/7", min_epoch=5, wait_seconds=30)
        yield plane, driver


def _pairs(epoch: int) -> list[dict[str, Any]]:
    days = (date(2013, 1, 31), None)
    return [
        {"origin": origin, "number": number, "flag": flag, "day": day, "n": BIG + epoch}
        for origin in ("JFK", "", None, "a,b'\"\n")
        for number, flag, day in ((BIG, True, days[0]), (-5, False, days[1]), (None, None, days[0]))
    ]


def _typed(epoch: int) -> dict[str, Any]:
    return TYPED_ROW | {
        "big": BIG + epoch,
        "exact": Decimal("12345678901234.5678") + epoch,
        "at": MOMENT,
        "raw": b"\x00\xff",
        "f": 0.1 + 0.2,
        "tags": ["a", None, SCRIPT],
        "point": {"x": epoch, "s": "p"},
        "seen": [("k", BIG)],
        "nothing": None,
    }


def _wide(number: int) -> dict[str, Any]:
    return {"id": number} | {f"column_{column:05}": column for column in range(10_000)}
