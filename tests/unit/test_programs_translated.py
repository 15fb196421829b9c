"""Control flow of entries that random programs do not cover: results and errors equal those of the class."""

from __future__ import annotations

import importlib.util
import inspect
import linecache
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from epochal.programs import (
    Collection,
    Counter,
    DenseMatrix,
    Global,
    Map,
    Partial,
    Partitioned,
    entry,
    program,
    translate,
)
from epochal.programs.execution import Arrival, Departure, Executable, Failed
from examples.sdg import collaborative_filtering
from tests.kit.program_interpreter import Call, Interpreter


@program
class Ways:
    numbers: Partitioned[Map[int, int]]
    names: Partitioned[Map[str, str]]
    words: Partitioned[Counter[str]]
    parts: Partial[Counter[int]]
    RATE = 3

    @entry
    def shift(self, k: int, x: int = 4) -> int:
        """A parameter is assigned before it is the key; one has a default; a constant of the class."""
        k = k + 1
        self.numbers.add(k, x * self.RATE)
        return self.numbers.get(k, 0)

    @entry
    def parse(self, key: str) -> str:
        """try, except and else between two state elements."""
        text: str = self.names.get(key, key)
        try:
            number: int = int(text)
            word: str = f"n{number}"
        except ValueError as error:
            word = str(error)
        else:
            word = word + "!"
        self.words.add(word)
        return word + str(self.words.count(word))

    @entry
    def branches(self, k: int, x: int) -> str:
        """Each branch accesses another state element."""
        if x > 2:
            size: int = Global(self.parts).count(k)
            return f"{sum(Collection(size))}"
        elif x > 1:
            self.parts.add(k)
        else:
            if self.numbers.get(k) is None:
                raise KeyError(k)
            y: int = x
            self.parts.add(y)
        return "end"

    @entry
    def both(self, k: int) -> tuple[int, int]:
        """Two variables with several values, and a write to all instances."""
        first: int = Global(self.parts).count(k)
        second: int = Global(self.parts).count(k + 1)
        if k > 2:
            Global(self.parts).clear()
        total: int = first + second
        return sum(Collection(total)), sum(Collection(second))

    @entry
    def all_of(self, many: tuple[str, ...], n: int) -> int:
        """A fan-out that ends early, by an exception of its arguments too; two methods, keywords, and else."""
        for i, word in enumerate(many):
            if i == n:
                raise ValueError(word)
            if word == "stop":
                break
            self.words.add(word, amount=10 // (n - i + 1))
            self.words.remove(key=word + "x")
        else:
            return -1
        return n


@program
class Written:
    """Writes of fan-outs whose arguments have one type; their values decide whether they are valid."""

    cells: Partitioned[DenseMatrix]
    numbers: Partitioned[Map[str, int]]
    words: Partitioned[Counter[str]]

    @entry
    def fill(self, places: tuple[tuple[int, int], ...]) -> None:
        for row, column in places:
            self.cells.set_element(row, column, 1.0)

    @entry
    def scale(self, many: tuple[tuple[str, int], ...]) -> None:
        for key, factor in many:
            self.numbers.put(key, None if factor == 7 else factor * 2)

    @entry
    def count(self, many: tuple[str, ...], times: int) -> None:
        for word in many:
            if times:
                self.words.add(word, times * 2)
            else:
                self.words.add(word)


WRITTEN = [
    Call("fill", {"places": ((1, 0), (2, 3), (3, -1), (1, 2))}),
    Call("fill", {"places": ((2, 1), (2, 2**40))}),
    Call("fill", {"places": ((3, 4), (1, 1))}),
    Call("scale", {"many": (("a", 1), ("b", 2), ("a", 2**62), ("c", 5))}),
    Call("scale", {"many": (("b", 3), ("c", 7), ("d", 5))}),
    Call("scale", {"many": (("c", -(2**62)), ("e", -(2**62) - 1))}),
    Call("count", {"many": ("x", "y"), "times": 0}),
    Call("count", {"many": ("y", "z"), "times": 3}),
    Call("count", {"many": ("x",), "times": 2**62}),
]


def random_call(chance: random.Random) -> Call:
    k, x = chance.randint(0, 4), chance.randint(0, 4)
    many = tuple(chance.choice(["a", "b", "stop", "ax"]) for _ in range(chance.randrange(5)))
    return chance.choice(
        [
            Call("shift", {"k": k, "x": x}),
            Call("shift", {"k": k}),
            Call("shift"),
            Call("parse", {"key": chance.choice(["1", "a", "2"])}),
            Call("parse", {"key": 3}),
            Call("branches", {"k": k, "x": x}),
            Call("both", {"k": k}),
            Call("all_of", {"many": many, "n": x}),
        ]
    )


def answered(plain: Any, call: Call) -> Any:
    try:
        return getattr(plain, call.entry)(**call.arguments)
    except Exception as error:  # noqa: BLE001 # every exception is an answer
        return Failed.of(error)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.claim("SDG, 4.2, rule 4")
def test_answers_and_state_equal_those_of_the_class(parallelism: int) -> None:
    kinds = set()
    for seed in range(15):
        chance = random.Random(seed)
        calls = [random_call(chance) for _ in range(30)]
        plain, running = Ways(), Interpreter(Ways, parallelism, chance)
        expected = [answered(plain, call) for call in calls]
        assert [answer for start in range(0, 30, 7) for answer in running.epoch(calls[start : start + 7])] == expected
        assert list(running.rows("numbers")) == list(plain.numbers.rows())
        assert list(running.rows("words")) == list(plain.words.rows())
        kinds |= {answer.kind for answer in expected if isinstance(answer, Failed)}
    assert kinds == {"KeyError", "TypeError", "ValueError"} | ({"ZeroDivisionError"} & kinds)


def test_invalid_writes_of_a_fan_out_fail_as_in_the_class() -> None:
    plain, running = Written(), Interpreter(Written, 2, random.Random(1))
    expected = [answered(plain, call) for call in WRITTEN]
    assert sum(edge.fan_out for edge in translate(Written).edges) == 3
    assert running.epoch(WRITTEN) == expected
    kinds = [answer.kind if isinstance(answer, Failed) else None for answer in expected]
    large = "OverflowError"
    assert kinds == ["IndexError", "IndexError", None, large, "TypeError", large, None, None, large]
    for name in ("cells", "numbers", "words"):
        assert list(running.rows(name)) == list(getattr(plain, name).rows())


def test_task_elements_run_without_the_source_file(tmp_path: Path) -> None:
    """As in an executor, which unpickles the class by value."""
    path = tmp_path / "shipped_ways.py"
    path.write_text(inspect.getsource(collaborative_filtering))
    spec = importlib.util.spec_from_file_location("shipped_ways", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["shipped_ways"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    dataflow = translate(module.CollaborativeFiltering)
    shipped = cloudpickle.dumps((dataflow, module.CollaborativeFiltering))  # type: ignore[no-untyped-call]
    path.unlink()
    del sys.modules["shipped_ways"]
    linecache.clearcache()

    received, program = pickle.loads(shipped)
    executable = Executable(received, program)
    call = executable.call("add_rating", 0, {"user": 1, "item": 2, "rating": 3})
    assert isinstance(call, Departure) and call.key == 1
    state = received.elements["user_item"].make()
    (sent,) = executable.run(received.stages[0], [Arrival(call.edge, 0, call.values)], state)
    assert isinstance(sent, Departure) and tuple(sent.values) == (2, {"indices": [2], "values": [3]})
    assert list(state.changes()) == [((1, 2), 3)]


def test_stages_are_ordered_for_all_entries() -> None:
    graph = translate(Ways)
    order = [stage.element for stage in graph.stages if stage.element]
    assert order.index("numbers") < order.index("parts") and order.index("names") < order.index("words")
    fan_out = next(edge for edge in graph.edges if edge.fan_out)
    assert [str(field) for field in fan_out.fields] == ["add_key string", "add_amount bigint", "remove_key string"]
