"""References to driver processes in the catalog, with and without a machine."""

from __future__ import annotations

import pytest

from epochal.service.runtime.launchers.base import ProcessReference
from epochal.service.runtime.machine import Machine


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("4711@99", ProcessReference(identity="4711@99")),
        ("//node-1/boot+2/4711@99", ProcessReference(identity="4711@99", machine=Machine("node-1", "boot+2"))),
        ("//node-1/boot/pods/a-1", ProcessReference(identity="pods/a-1", machine=Machine("node-1", "boot"))),
    ],
)
def test_references_round_trip_through_their_text(text: str, reference: ProcessReference) -> None:
    assert ProcessReference.parse(text) == reference
    assert str(reference) == text
