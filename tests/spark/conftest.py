"""Fixtures of the unit tests that tests with a Spark session also use."""

from tests.unit.conftest import nothing_kept, store

__all__ = ["nothing_kept", "store"]
