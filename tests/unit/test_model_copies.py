"""Copies of pydantic models in tests (``tests.kit.model_copies``)."""

from __future__ import annotations

import pytest

from epochal.service.domain.settings import Settings


def test_copies_have_new_values_of_fields() -> None:
    assert Settings().model_copy(update={"log_files": 5}).log_files == 5


def test_copies_with_values_of_unknown_fields_are_refused() -> None:
    with pytest.raises(TypeError, match="Settings has no field log_bytes"):
        Settings().model_copy(update={"log_bytes": 12})
