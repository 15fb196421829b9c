"""The operator under test, shared with the tests of tasks that require no Spark session."""

from tests.unit.tasks.conftest import make_operator

__all__ = ["make_operator"]
