"""State classes, values and types of programs in plain runs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from epochal.programs import (
    Collection,
    Counter,
    DenseMatrix,
    FrozenValue,
    Global,
    Map,
    Matrix,
    Partial,
    Partitioned,
    PartitionedByColumn,
    Vector,
    entry,
    program,
    sequential,
)
from epochal.programs.annotations import answer_type, value_type
from epochal.programs.declaration import declared
from epochal.programs.execution import Failed
from epochal.programs.state import OVERFLOWED, State
from epochal.programs.value_types import NotAValueType
from tests.kit.program_interpreter import Call, Interpreter


@program
class Everything:
    prices: Partitioned[Map[str, float]]
    seen: Partial[Counter[int]]
    weights: Partial[Vector[int]]
    ratings: Partitioned[Matrix[int]]
    by_item: PartitionedByColumn[Matrix[int]]
    dense: Partitioned[DenseMatrix]

    @entry
    def price(self, name: str, price: float) -> float | None:
        self.prices.put(name, price)
        return self.prices.get(name)

    @entry
    def weigh(self, index: int, amount: int) -> int:
        self.weights.add(index, amount)
        return self.weights.get(index)

    @entry
    def heaviest(self) -> tuple[tuple[int, int], ...]:
        weights: Vector[int] = Global(self.weights).value()
        weights = weights * 2
        return self.sum(Collection(weights)).top(2)

    @entry
    def text(self, n: int) -> str:
        word: str = n  # type: ignore[assignment]
        return word

    def sum(self, each: list[Vector[int]]) -> Vector[int]:
        total: Vector[int] = Vector()
        for vector in each:
            total = total + vector
        return total


def state(name: str) -> Any:
    return declared(Everything).elements[name].make()


@pytest.mark.claim("SDG, table 1, representation")
def test_elements_are_rows_of_typed_columns() -> None:
    models = {name: str(element.model) for name, element in declared(Everything).elements.items()}
    assert models == {
        "prices": "key string → value double",
        "seen": "key bigint → count bigint",
        "weights": "index bigint → value bigint",
        "ratings": "row bigint, column bigint → value bigint",
        "by_item": "column bigint, row bigint → value bigint",
        "dense": "row bigint → values array<double>",
    }


def fill(of: Any, chance: random.Random) -> None:
    """Some writes, of each kind that the class has."""
    for _ in range(30):
        i, j, n = chance.randrange(4), chance.randrange(4), chance.randint(-3, 3)
        match of:
            case Map():
                writes: list[tuple[Any, ...]] = [(of.put, f"k{i}", n), (of.add, f"k{i}", n), (of.remove, f"k{i}")]
            case Counter():
                writes = [(of.add, i, n), (of.remove, i)]
            case Vector():
                writes = [(of.set, i, n), (of.add, i, n), (of.add_vector, Vector({i: n, j: 1}))]
            case Matrix():
                writes = [(of.set_element, i, j, n), (of.add, i, j, n), (of.set_row, i, Vector({j: n}))]
            case _:
                writes = [(of.add, i, j, n), (of.add_row, i, Vector({j: float(n)})), (of.remove_row, i)]
        write, *arguments = chance.choice(writes)
        write(*arguments)


@pytest.mark.parametrize("name", list(declared(Everything).elements))
@pytest.mark.claim("SDG, 4.1")
def test_state_equals_its_rows_and_changes(name: str) -> None:
    chance = random.Random(name)
    kept: dict[Any, Any] = {}
    original: State = state(name)
    for _ in range(10):
        fill(original, chance)
        for key, value in original.changes():
            kept.pop(key, None)
            if value is not None:
                kept[key] = value
        original.settle()
        assert list(original.changes()) == []
        assert list(original.rows()) == sorted(kept.items())
        loaded = state(name)
        loaded.load(kept.items())
        assert list(loaded.rows()) == list(original.rows()) and list(loaded.changes()) == []


def test_reads_return_immutable_values() -> None:
    ratings = state("ratings")
    ratings.set_element(1, 2, 3)
    row = ratings.row(1)
    ratings.add(1, 2, 5)
    assert row == Vector({2: 3}) and ratings.row(1) == Vector({2: 8})
    with pytest.raises(FrozenValue, match="a Vector that is a value cannot be changed"):
        row.set(2, 9)
    weights = state("weights")
    weights.add(0, 1)
    value = weights.value()
    weights.clear()
    assert value == Vector({0: 1}) and weights.value() == Vector()


def test_sum_that_exceeds_64_bits_is_an_error_for_every_reader() -> None:
    plain = Everything()
    with pytest.raises(OverflowError, match="amount is 9223372036854775808, which does not fit into 64 bits"):
        plain.weigh(0, 2**63)
    assert plain.weigh(0, 2**63 - 1) == 2**63 - 1
    for _ in range(2):
        with pytest.raises(
            OverflowError, match="the sum in weights, index 0 exceeded 64 bits; set a new value to continue"
        ):
            plain.weigh(0, 1)
    assert list(plain.weights.rows()) == [((0,), OVERFLOWED)]
    plain.weights.set(0, 5)
    assert plain.weigh(0, 1) == 6


def test_products_of_integers_are_exact() -> None:
    ratings = state("ratings")
    ratings.set_element(0, 0, 2**40)
    ratings.set_element(0, 1, -(2**40))
    ratings.set_element(1, 0, 3)
    assert ratings.multiply(Vector({0: 2**30, 1: 2**30})) == Vector({1: 3 * 2**30})
    with pytest.raises(OverflowError, match="an element of ratings times the vector"):
        ratings.multiply(Vector({0: 2**30}))


def test_products_equal_those_of_numpy() -> None:
    chance = np.random.default_rng(3)
    dense = chance.integers(-3, 4, (6, 5))
    vector = chance.integers(-3, 4, 5)
    ratings, floats = state("ratings"), state("dense")
    for (row, column), value in np.ndenumerate(dense):
        ratings.set_element(row, column, int(value))
        floats.set_element(row, column, int(value))
    expected = Vector.dense((dense @ vector).tolist())
    assert ratings.multiply(Vector.dense(vector.tolist())) == expected
    assert floats.multiply(Vector.dense(vector.tolist())) == expected
    assert ratings.column(2) == Vector.dense(dense[:, 2].tolist())


def test_items_are_in_the_order_of_keys() -> None:
    seen = state("seen")
    for key in (5, 1, 3, 1):
        seen.add(key)
    assert list(seen.items()) == [(1, 2), (3, 1), (5, 1)]
    assert seen.top(2) == ((1, 2), (3, 1))
    assert list(Vector({9: 1, 2: 2}).items()) == [(2, 2), (9, 1)]


def test_typed_variables_accept_only_values_of_their_type() -> None:
    """With the same messages in a plain run and in the dataflow."""
    plain = Everything()
    assert plain.price("tea", 3) == 3.0 and type(plain.price("tea", 3)) is float
    wrong = [
        Call("text", {"n": 3}),
        Call("price", {"name": 3, "price": 1.0}),
        Call("weigh", {"index": 1, "amount": True}),
    ]
    answers = Interpreter(Everything, 2).epoch(wrong)
    for call, answer in zip(wrong, answers, strict=True):
        with pytest.raises(TypeError) as raised:
            getattr(plain, call.entry)(**call.arguments)
        assert answer == Failed("TypeError", str(raised.value))
    assert answers[0].message == "word is 3, of type int, and not str"


def test_partial_state_has_several_instances_in_a_plain_run() -> None:
    dealt = sequential(Everything, instances=2)
    assert [dealt.weigh(0, 10), dealt.weigh(0, 1), dealt.weigh(0, 10), dealt.weigh(3, 4)] == [10, 1, 20, 4]
    assert dealt.heaviest() == ((0, 42), (3, 8))


@pytest.mark.parametrize(
    ("annotation", "spark"),
    [
        (int, "bigint"),
        (str | None, "string"),
        (tuple[int, ...], "array<bigint>"),
        (tuple[str, float], "struct<_1: string, _2: double>"),
        (Vector, "struct<indices: array<bigint>, values: array<double>>"),
    ],
)
def test_types_are_mapped_to_spark_types(annotation: Any, spark: str) -> None:
    assert value_type(annotation).spark == spark


def test_values_survive_a_round_trip_through_rows() -> None:
    type = value_type(tuple[tuple[int, Vector[int] | None], ...])
    value = ((1, Vector({3: 4})), (2, None))
    assert type.from_row(type.to_row(value)) == value
    answer = answer_type(dict[str, list[float]])
    assert answer.from_row(answer.to_row(answer.conform({"a": [1, 2.5]}, "it"))) == {"a": [1.0, 2.5]}


@pytest.mark.parametrize("annotation", [list[int], set[int], dict[str, int], tuple, int | str, complex])
def test_mutable_and_unsupported_types_are_refused(annotation: Any) -> None:
    with pytest.raises(NotAValueType):
        value_type(annotation)
