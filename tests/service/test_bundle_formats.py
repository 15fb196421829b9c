"""Import of the stored bundle in the current format, and look-ups of its state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.service.bundles import imported, value
from tests.service.conftest import Plane
from tests.spark.formats.make import BUNDLE, MAIN, STATE

FIXTURE = Path(__file__).parents[1] / "spark" / "formats" / "stored"

BASES_AT = 3
"""The epoch of the last bases; a bundle contains the files after it."""


def test_the_stored_bundle_is_imported(plane: Plane) -> None:
    done = imported(plane, (FIXTURE / BUNDLE).read_bytes())
    assert done["state"] == "succeeded", done["error"]
    for expected in json.loads((FIXTURE / STATE).read_text()):
        if expected["snapshot"]["branch"] == MAIN and expected["snapshot"]["epoch"] > BASES_AT:
            epoch, rows = expected["snapshot"]["epoch"], expected["tables"]["delays"]
            assert all(stored_value(plane, *key, epoch) == values for key, values in rows)
    assert value(plane, "flights", "nowhere", "2013-01-01") == 404


def stored_value(plane: Plane, city: str, day: str, epoch: int) -> list[Any]:
    found = value(plane, "flights", city, day, epoch=epoch)
    return [found[name] for name in ("flights", "worst", "mean_sum", "mean_count")]
