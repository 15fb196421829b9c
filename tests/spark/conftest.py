"""Fixtures of the unit tests that tests with a Spark session also use."""

from tests.unit.conftest import empty_row_group_cache, store

__all__ = ["empty_row_group_cache", "store"]
