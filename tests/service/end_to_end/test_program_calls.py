"""Programs under a control plane, called over HTTP while drivers are killed and applications are forked."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.client.applications import ApplicationHandle
from epochal.testing.servers.control_plane import control_plane
from examples.sdg.collaborative_filtering import CollaborativeFiltering
from tests.kit.lives import at
from tests.kit.waiting import eventually
from tests.service.end_to_end.blocks import ROOT
from tests.service.end_to_end.test_loop_killed import kill_driver, running

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

SECONDS = 240
RATE = 0.1
USERS, ITEMS = 8, 12
Rating = tuple[int, int, int]


def test_fork_recommends_from_its_savepoint_while_the_original_runs(tmp_path: Path) -> None:
    """Expected answers come from the plain class, run over the ratings of each application."""
    chance = random.Random(3)
    first, later, other = (
        [(chance.randrange(USERS), chance.randrange(ITEMS), chance.randint(1, 5)) for _ in range(count)]
        for count in (60, 40, 20)
    )
    original, fork = tmp_path / "original", tmp_path / "fork"
    (fork / "ratings").mkdir(parents=True)
    with control_plane(tmp_path / "plane") as plane, plane.client() as client:
        write_ratings(original, 0, first)
        client.applications.create(
            "filtering",
            client.artifacts.upload(ROOT / "examples" / "sdg" / "collaborative_filtering.py").sha256,
            parameters={"input": str(original)},
            configuration={"parallelism": 2, "epoch_interval_seconds": 0.2, "restart": {"backoff_seconds": 0.1}},
        )
        application = client.application("filtering")
        eventually(lambda: has_processed(application, first), SECONDS)
        made = client.operations.wait(application.savepoints.create("yesterday"), timeout_seconds=SECONDS)
        yesterday = application.epochs.get((made.result or {})["epoch"])

        killed = kill_driver(application)
        write_ratings(original, 1, later)
        eventually(lambda: has_processed(application, [*first, *later]), SECONDS)
        assert recommended(application) == plainly([*first, *later]) and running(application) != killed

        points: dict[str, Any] = {"by-epoch": {"epoch": yesterday.epoch}, "by-time": {"at": yesterday.committed_at}}
        for name, point in points.items():
            parent = client.applications.fork("filtering", name, start=False, **point).parent
            assert parent is not None and parent.epoch == yesterday.epoch
            check_state(client.application(name), first)
        client.applications.fork(
            "filtering", "forked", savepoint="yesterday", parameters={"input": str(fork)}, start=False
        )
        forked = client.application("forked")
        check_state(forked, first)
        client.applications.start("forked")
        assert recommended(forked) == plainly(first)
        write_ratings(fork, 0, other)
        eventually(lambda: has_processed(forked, [*first, *other]), SECONDS)
        assert recommended(forked) == plainly([*first, *other])
        assert recommended(application) == plainly([*first, *later])
        check_state(application, [*first, *later])


def write_ratings(folder: Path, number: int, ratings: Sequence[Rating]) -> None:
    """Write a file of ratings that appears complete."""
    rows = [
        {"at": at(1000 * number + second).isoformat(), "user": user, "item": item, "rating": rating}
        for second, (user, item, rating) in enumerate(ratings)
    ]
    (folder / "ratings").mkdir(parents=True, exist_ok=True)
    hidden = folder / "ratings" / f".{number}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(folder / "ratings" / f"{number}.json")


def of_class(ratings: Sequence[Rating]) -> CollaborativeFiltering:
    plain = CollaborativeFiltering()
    for rating in ratings:
        plain.add_rating(*rating)
    return plain


def plainly(ratings: Sequence[Rating]) -> list[dict[int, int]]:
    plain = of_class(ratings)
    return [dict(plain.recommend(user).items()) for user in range(USERS)]


def recommended(application: ApplicationHandle) -> list[dict[int, int]]:
    """Scores of items by user, requested over HTTP."""
    calls = [{"arguments": {"user": user}} for user in range(USERS)]
    answers = application.entries["recommend"].call_many(calls, wait_seconds=SECONDS)
    assert [answer.error for answer in answers] == [None] * USERS
    return [dict(zip(each.value["indices"], each.value["values"], strict=True)) for each in answers]


def rows(application: ApplicationHandle, table: str) -> dict[tuple[int, int], int]:
    """Values by row and column, summed over instances."""
    sums: Counter[tuple[int, int]] = Counter()
    for row in application.state(table).scan_all():
        sums[row.key["row"], row.key["column"]] += row.value["value"]
    return dict(sums)


def has_processed(application: ApplicationHandle, ratings: Sequence[Rating]) -> bool:
    """Check whether exactly these ratings were processed: ``co_occurrence`` is written last."""
    head: Any = application.get().head
    return bool(head) and rows(application, "co_occurrence") == dict(of_class(ratings).co_occurrence.items())


def check_state(application: ApplicationHandle, ratings: Sequence[Rating]) -> None:
    plain = of_class(ratings)
    assert rows(application, "user_item") == dict(plain.user_item.items())
    assert rows(application, "co_occurrence") == dict(plain.co_occurrence.items())


def test_gradients_equal_numpy_after_a_kill(tmp_path: Path) -> None:
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
            assert call_entry(application, "gradient") == pytest.approx(gradient.tolist(), rel=1e-9)
            weights = weights - RATE * gradient
            application.entries["step"].call(weights=vector(weights), wait_seconds=SECONDS)


def vector(values: np.ndarray) -> dict[str, list[float]]:
    """JSON form of a vector without zeros."""
    return {"indices": list(range(len(values))), "values": values.tolist()}


def call_entry(application: ApplicationHandle, entry: str) -> list[float]:
    answer = application.entries[entry].call(wait_seconds=SECONDS)
    assert answer.error is None and answer.value["indices"] == [0, 1, 2]
    return list(answer.value["values"])
