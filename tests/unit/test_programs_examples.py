"""The example programs give the same results sequentially, as a dataflow, and in NumPy or plain Python."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from epochal.programs import Vector, sequential, translate
from examples.sdg import collaborative_filtering
from examples.sdg.collaborative_filtering import CollaborativeFiltering
from examples.sdg.key_value_store import KeyValueStore
from examples.sdg.logistic_regression import LogisticRegression
from examples.sdg.logistic_rounds import LogisticRounds
from examples.sdg.word_count import WordCount
from tests.kit.lives import TIMESTAMP, Life, Step, at
from tests.kit.program_interpreter import Call, Interpreter


@pytest.mark.claim("SDG, 4.2, rule 1", "SDG, 4.2, rule 2", "SDG, 4.2, rule 3", "SDG, 4.2, rule 4", "SDG, 4.2, rule 5")
def test_collaborative_filtering_has_the_dataflow_of_figure_1() -> None:
    """Five task elements: two for a rating, three for a recommendation; the edges with their dispatch."""
    graph = translate(CollaborativeFiltering)
    names = [(task.entry, task.name) for task in graph.tasks]
    assert names == [
        ("add_rating", "update user_item"),
        ("add_rating", "update co_occurrence"),
        ("recommend", "read user_item"),
        ("recommend", "read co_occurrence"),
        ("recommend", "merge"),
    ]
    edges = {(edge.source, edge.target): (edge.dispatch.value, edge.key) for edge in graph.edges}
    assert edges == {
        (None, 0): ("by key", "user"),
        (0, 1): ("one-to-any", None),
        (None, 2): ("by key", "user"),
        (2, 3): ("one-to-all", None),
        (3, 4): ("all-to-one", None),
    }
    sent = {(edge.source, edge.target): [str(field) for field in edge.fields] for edge in graph.edges}
    vector = "row struct<indices: array<bigint>, values: array<bigint>>"
    assert sent[0, 1] == ["item bigint", vector] and sent[2, 3] == [vector]
    assert [stage.element for stage in graph.stages] == ["user_item", "co_occurrence", None]
    assert str(graph.elements["user_item"].model) == "row bigint, column bigint → value bigint"


def recommended(rated: list[tuple[int, int, int]], users: int, items: int) -> list[Any]:
    """The scores of all items for each user, computed by NumPy."""
    ratings, together = np.zeros((users, items), int), np.zeros((items, items), int)
    for user, item, rating in rated:
        ratings[user, item] = rating
        for other in np.flatnonzero(ratings[user]):
            together[item, other] += 1
            together[other, item] += 1
    return [together @ ratings[user] for user in range(users)]


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.claim("SDG, algorithm 1")
def test_recommendations_equal_those_of_numpy(parallelism: int) -> None:
    chance = random.Random(5)
    users, items = 8, 12
    rated = [(chance.randrange(users), chance.randrange(items), chance.randint(1, 5)) for _ in range(150)]
    expected = [Vector.dense(scores.tolist()) for scores in recommended(rated, users, items)]

    running = Interpreter(CollaborativeFiltering, parallelism)
    plain, dealt = CollaborativeFiltering(), sequential(CollaborativeFiltering, instances=parallelism)
    calls = [Call("add_rating", {"user": u, "item": i, "rating": r}) for u, i, r in rated]
    for call in calls:
        plain.add_rating(**call.arguments)
        dealt.add_rating(**call.arguments)
    running.epoch(calls[:70])
    running.epoch(calls[70:])
    lookups = [Call("recommend", {"user": user}) for user in range(users)]
    assert running.epoch(lookups) == expected
    assert [plain.recommend(user) for user in range(users)] == expected
    assert [dealt.recommend(user) for user in range(users)] == expected


def test_the_key_value_store_behaves_like_a_dictionary() -> None:
    chance = random.Random(2)
    values: dict[str, str] = {}
    running, calls, expected = Interpreter(KeyValueStore, 3), list[Call](), list[Any]()
    for number in range(300):
        key, value = f"k{chance.randrange(9)}", f"v{number}"
        match chance.randrange(4):
            case 0:
                calls.append(Call("put", {"key": key, "value": value}))
                values[key] = value
                expected.append(None)
            case 1:
                calls.append(Call("get", {"key": key}))
                expected.append(values.get(key))
            case 2:
                calls.append(Call("delete", {"key": key}))
                expected.append(values.pop(key, None) is not None)
            case 3:
                before = values.get(key) if chance.random() < 0.5 else "other"
                calls.append(Call("compare_and_set", {"key": key, "expected": before, "value": value}))
                expected.append(before == values.get(key))
                if before == values.get(key):
                    values[key] = value
    assert [answer for start in range(0, 300, 37) for answer in running.epoch(calls[start : start + 37])] == expected
    assert dict(running.rows("values")) == {(key,): value for key, value in values.items()}


WINDOWS = (10_000, 1_000, 100)


def test_words_are_counted_in_windows_of_three_sizes() -> None:
    """Includes lines exactly at the start of a window, and one millisecond earlier."""
    chance = random.Random(8)
    times = [chance.randrange(25_000) for _ in range(120)] + [
        begin + before for window in WINDOWS for begin in (window, 2 * window) for before in (0, -1)
    ]
    lines = [(" ".join(chance.choices(("to", "be", "or", "Not"), k=chance.randrange(5))), time) for time in times]
    running, plain = Interpreter(WordCount, 4), WordCount()
    for window in WINDOWS:
        counts = Counter((word, at // window) for line, at in lines for word in line.lower().split())
        calls = [Call("add_line", {"line": line, "at": at, "window": window}) for line, at in lines]
        lookups = [(word, number * window) for word in ("be", "not", "never") for number in range(26_000 // window + 1)]
        answers = running.epoch(calls)
        assert answers == [plain.add_line(**call.arguments) for call in calls]
        assert answers == [len(line.split()) for line, _ in lines]
        calls = [Call("count", {"word": word, "start": start, "window": window}) for word, start in lookups]
        answers = running.epoch(calls)
        assert answers == [plain.count(**call.arguments) for call in calls]
        assert answers == [counts[word, start // window] for word, start in lookups]


@pytest.mark.parametrize("parallelism", [1, 4])
def test_logistic_regression_equals_that_of_numpy(parallelism: int) -> None:
    chance = np.random.default_rng(1)
    features = np.column_stack([np.ones(60), chance.normal(size=(60, 2))])
    labels = (chance.random(60) < 1 / (1 + np.exp(-features @ [0.3, 2.0, -1.5]))).astype(float)
    rate, rounds = 0.1, 8
    reference = np.zeros(3)
    for _ in range(rounds):
        reference -= rate * features.T @ (1 / (1 + np.exp(-features @ reference)) - labels)

    running, plain = Interpreter(LogisticRegression, parallelism), LogisticRegression()
    rows = [Vector.dense(row) for row in features.tolist()]
    weights, plain_weights = Vector[float](), Vector[float]()
    for _ in range(rounds):
        calls = [Call("observe", {"features": row, "label": label}) for row, label in zip(rows, labels, strict=True)]
        *_, gradient = running.epoch([*calls, Call("gradient")])
        weights = weights - gradient * rate
        assert running.epoch([Call("step", {"weights": weights})]) == [None]
        for row, label in zip(rows, labels, strict=True):
            plain.observe(row, label)
        plain_weights = plain_weights - plain.gradient() * rate
        plain.step(plain_weights)
    assert [weights.get(n) for n in range(3)] == pytest.approx(reference.tolist(), rel=1e-9)
    assert [plain_weights.get(n) for n in range(3)] == pytest.approx(reference.tolist(), rel=1e-9)
    (probability,) = running.epoch([Call("probability", {"features": rows[0]})])
    assert probability == pytest.approx(plain.probability(rows[0]))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rounds_of_logistic_regression_equal_those_of_numpy(parallelism: int) -> None:
    chance = np.random.default_rng(2)
    features = np.column_stack([np.ones(40), chance.normal(size=(40, 2))])
    labels = (chance.random(40) < 1 / (1 + np.exp(-features @ [0.3, 1.0, -0.8]))).astype(int)
    rate, penalty, reference, weights = 0.05, 0.5, np.zeros(3), Vector[float]()
    running = Interpreter(LogisticRounds, parallelism)
    rows = [Vector.dense(row) for row in features.tolist()]
    calls = [
        Call("learn", {"example": number, "features": row, "label": label})
        for number, (row, label) in enumerate(zip(rows, labels.tolist(), strict=True))
    ]
    assert running.epoch(calls) == [None] * len(calls)
    refused = [{"features": rows[0], "label": 2}, {"features": Vector({-1: 1.0}), "label": 1}]
    answers = running.epoch([Call("learn", {"example": 99, **arguments}) for arguments in refused])
    assert [answer.message for answer in answers] == [
        "example 99 has label 2 instead of 0 or 1",
        "example 99 has a feature -1, where its label would be",
    ]
    for _ in range(6):
        (weights,) = running.epoch([Call("descend", {"weights": weights, "rate": rate, "penalty": penalty})])
        gradient = features.T @ (1 / (1 + np.exp(-features @ reference)) - labels)
        reference -= rate * (gradient + penalty * reference)
        assert [weights.get(n) for n in range(3)] == pytest.approx(reference.tolist(), rel=1e-9)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_recommendations_of_the_application_equal_those_of_numpy(parallelism: int) -> None:
    """The driver is killed, and the application is rescaled to 4 subtasks and back."""
    chance = random.Random(6)
    users, items = 6, 10
    rated = [(chance.randrange(users), chance.randrange(items), chance.randint(1, 5)) for _ in range(120)]
    columns = {
        "ratings": pa.schema([("at", TIMESTAMP), *((name, pa.int64()) for name in ("user", "item", "rating"))]),
        "asked": pa.schema([("at", TIMESTAMP), ("user", pa.int64())]),
    }
    calls = [
        {"at": at(second), "user": user, "item": item, "rating": rating}
        for second, (user, item, rating) in enumerate(rated)
    ]
    pipeline = collaborative_filtering.build(collaborative_filtering.Parameters(input="in", output="out"))
    with Life(pipeline, columns, parallelism=parallelism) as life:
        life.epoch(ratings=calls[:50][::-1])
        life.epoch(Step("die", 4), ratings=calls[50:])
        life.epoch(Step("restart", parallelism), asked=[{"at": at(200), "user": user} for user in range(users)])
        life.finish()
        found = {row["user"]: row["value"] for row in life.all_of("recommendations")}
    expected = {user: vector.tolist() for user, vector in enumerate(recommended(rated, users, items))}
    for user, value in found.items():
        scores = dict(zip(value["indices"], value["values"], strict=True))
        assert [scores.get(item, 0) for item in range(items)] == expected[user]
    assert sorted(found) == list(range(users))
