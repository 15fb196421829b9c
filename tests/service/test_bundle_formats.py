"""The stored bundle of the present format is imported and its state is looked up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.service.bundles import imported, value
from tests.service.conftest import Plane
from tests.spark.formats.make import BUNDLE, MAIN, STATE

FIXTURE = Path(__file__).parents[1] / "spark" / "formats" / "stored"

BASES_AT = 2
"""A bundle has the files since the last bases."""


def test_the_stored_bundle_is_imported(plane: Plane) -> None:
    done = imported(plane, (FIXTURE / BUNDLE).read_bytes())
    assert done["state"] == "succeeded", done["error"]
    for said in json.loads((FIXTURE / STATE).read_text()):
        if said["snapshot"]["branch"] == MAIN and said["snapshot"]["epoch"] > BASES_AT:
            epoch, rows = said["snapshot"]["epoch"], said["tables"]["delays"]
            assert all(stored_value(plane, *key, epoch) == values for key, values in rows)
    assert value(plane, "flights", "nowhere", "2013-01-01") == 404


def stored_value(plane: Plane, city: str, day: str, epoch: int) -> list[Any]:
    found = value(plane, "flights", city, day, epoch=epoch)
    return [found[name] for name in ("flights", "worst", "mean_sum", "mean_count")]
