"""A file with a program under a control plane, called over HTTP; its driver is killed between two rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from epochal.client.application import ApplicationHandle
from epochal.testing.servers.control_plane import control_plane
from tests.end_to_end.blocks import ROOT
from tests.end_to_end.test_loop_killed import kill_driver

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

SECONDS = 240
RATE = 0.1


def test_gradients_are_those_of_numpy_also_after_a_kill(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    features = chance.normal(size=(40, 3))
    labels = (chance.random(40) < 1 / (1 + np.exp(-features @ [0.3, 2.0, -1.5]))).astype(float)
    weights = np.zeros(3)
    with control_plane(tmp_path / "plane") as plane, plane.client() as client:
        artifact = client.artifacts.upload(ROOT / "examples" / "sdg" / "logistic_regression.py").sha256
        configuration = {"parallelism": 2, "restart": {"backoff_seconds": 0.1}}
        client.applications.create("regression", artifact, parameters={}, configuration=configuration)
        application = client.application("regression")
        assert [each.name for each in application.entries.list()] == ["gradient", "observe", "probability", "step"]
        for round in range(2):
            examples = [
                {"features": vector(row), "label": label} for row, label in zip(features, labels.tolist(), strict=True)
            ]
            answers = application.entries["observe"].call_many(
                [{"arguments": example} for example in examples], wait_seconds=SECONDS
            )
            assert [(answer.value, answer.error) for answer in answers] == [(None, None)] * len(examples)
            if round == 0:
                kill_driver(application)
            gradient = features.T @ (1 / (1 + np.exp(-features @ weights)) - labels)
            assert called(application, "gradient") == pytest.approx(gradient.tolist(), rel=1e-9)
            weights = weights - RATE * gradient
            application.entries["step"].call(weights=vector(weights), wait_seconds=SECONDS)


def vector(values: np.ndarray) -> dict[str, list[float]]:
    """As it stands in JSON; no value is zero."""
    return {"indices": list(range(len(values))), "values": values.tolist()}


def called(application: ApplicationHandle, entry: str) -> list[float]:
    answer = application.entries[entry].call(wait_seconds=SECONDS)
    assert answer.error is None and answer.value["indices"] == [0, 1, 2]
    return list(answer.value["values"])
