"""Values and parameters shared by the tests of the chart."""

from __future__ import annotations

import pytest

from tests.kit.charts import VALUES

IMAGE = {"image": {"repository": "registry.example/epochal"}}
POSTGRESQL = {**IMAGE, "database": {"existingSecret": "catalog"}, "store": "s3://bucket/epochal"}
every_file = pytest.mark.parametrize("name", VALUES)
"""Runs a test with each values file of the chart's ci folder."""
