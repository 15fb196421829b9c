"""Bundles of every format that there has been are imported, and what they hold is looked up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.service.bundles import imported, value
from tests.service.conftest import Plane
from tests.spark.formats.make import BUNDLE, MAIN, STATE

KEPT = Path(__file__).parents[1] / "formats"


BASES_AT = 2
"""A bundle has the files since the last bases."""


@pytest.mark.parametrize("format", [folder.name for folder in sorted(KEPT.iterdir()) if folder.name.isdigit()])
def test_a_bundle_of_an_earlier_format_is_imported(plane: Plane, format: str) -> None:
    done = imported(plane, (KEPT / format / BUNDLE).read_bytes())
    assert done["state"] == "succeeded", done["error"]
    for said in json.loads((KEPT / format / STATE).read_text()):
        if said["snapshot"]["branch"] == MAIN and said["snapshot"]["epoch"] > BASES_AT:
            epoch, rows = said["snapshot"]["epoch"], said["tables"]["delays"]
            assert all(kept(plane, *key, epoch) == values for key, values in rows)
    assert value(plane, "flights", "nowhere", "2013-01-01") == 404


def kept(plane: Plane, city: str, day: str, epoch: int) -> list[Any]:
    found = value(plane, "flights", city, day, epoch=epoch)
    return [found[name] for name in ("flights", "worst", "mean_sum", "mean_count")]
