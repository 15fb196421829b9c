"""The dataflow of random programs, at any parallelism and with any epochs, equals the class run sequentially."""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from collections import Counter as Sum
from pathlib import Path
from typing import Any

import pytest

from epochal.programs import ProgramRefused, translate
from epochal.programs.execution import Failed
from tests.kit.program_interpreter import Call, Interpreter
from tests.unit.property.random_programs import random_epochs, random_program

_NUMBERS = itertools.count()


def loaded(text: str, folder: Path) -> Any:
    """Loads the program from a file, so that Python finds its source."""
    name = f"random_program_{next(_NUMBERS)}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.Random


def sequential_answer(program: Any, call: Call) -> Any:
    try:
        return getattr(program, call.entry)(**call.arguments)
    except Exception as error:  # noqa: BLE001 # an exception of the entry is its answer
        return Failed.of(error)


def check(folder: Path, seed: int) -> int:
    """Returns the number of task elements of the program."""
    chance = random.Random(seed)
    text = random_program(chance)
    epochs = random_epochs(chance, text.count("@entry\n"))
    program = loaded(text, folder)
    running = Interpreter(program, parallelism := chance.randint(1, 4), chance)
    sequential = program()
    for epoch in epochs:
        assert running.epoch(epoch) == [sequential_answer(sequential, call) for call in epoch], (seed, epochs, text)
        match chance.randrange(4):
            case 0:
                running.restart()
            case 1:
                running.rescale(parallelism := parallelism + chance.randrange(2))
    for name in "abd":
        assert repr(list(running.rows(name))) == repr(list(getattr(sequential, name).rows())), (seed, epochs, text)
    for name in "cm":
        partial: Sum[Any] = Sum()
        for instance in running.instances(name):
            partial.update(dict(instance.rows()))
        state = getattr(sequential, name)
        rows = {key: value for key, value in partial.items() if value or not state.zero_is_none}
        assert rows == dict(state.rows()), (seed, epochs, text)
    return len(running.dataflow.tasks)


@pytest.mark.claim("SDG, 4.2")
def test_random_programs_equal_sequential_execution(tmp_path: Path) -> None:
    sizes = [check(tmp_path, seed) for seed in range(40)]
    assert max(sizes) > 8 and sum(sizes) > 150


BREAKING = {
    "while-loop": ["while k > 0:", "    k = k - 1"],
    "unknown-call": ["print(k)"],
    "set": ["members = {k, x}"],
    "unsupported-syntax": ["del k"],
    "state-as-value": ["alias = self.a"],
    "state-in-inner-scope": ["numbers = [self.a.get(i, 0) for i in range(k)]"],
    "unknown-access": ["self.d.forget(k)"],
}
"""For each rule: statements whose first line breaks it in any place."""
AT_THE_END = {
    "second-visit": ["self.a.put(k, 1)", "self.a.put(x, 1)"],
    "two-accesses": ["self.a.put(k, 1)", "self.b.add(k, k, self.d.count(k))"],
    "loop-over-state": ["n = 0", "for i in range(3):", "    n = n + self.d.count(i)"],
    "after-fan-out": ["for i in range(k):", "    self.d.add(i)", "self.a.put(k, 1)"],
    "untyped-variable": ["n = self.a.get(k, 0)", "self.d.add(n)"],
    "multi-valued": ["n: int = Global(self.c).size()", "return n"],
    "collection": ["n: int = self.d.count(k)", "return sum(Collection(n))"],
    "no-access-key": ["n: int = self.a.size()"],
    "global-of-partitioned": ["n: int = Global(self.a).get(k, 0)"],
    "key-expression": ["self.a.put(k, 1)", "self.d.add(k + 1)"],
}
"""For each rule: the body of an additional entry."""
BREAKS = {
    "two-accesses": 1, "loop-over-state": 1, "after-fan-out": 2, "second-visit": 1, "multi-valued": 1, "collection": 1,
    "key-expression": 1,
}  # fmt: skip
"""Index of the line that breaks the rule, if it is not the first."""


@pytest.mark.parametrize("slug", [*BREAKING, *AT_THE_END])
def test_a_program_that_breaks_a_rule_is_refused_at_the_line(slug: str, tmp_path: Path) -> None:
    for seed in range(4):
        chance = random.Random(f"{slug} {seed}")
        lines = random_program(chance).splitlines()
        if slug in BREAKING:
            body, broken = BREAKING[slug], 0
            heads = [number for number, line in enumerate(lines, 1) if ") -> int:" in line][1:]
            place = chance.choice(heads)
        else:
            body, broken = AT_THE_END[slug], BREAKS.get(slug, 0)
            lines += ["    @entry", "    def last(self, k: int, x: int) -> int:"]
            place = len(lines)
            body = [*body, "return k"]
        lines[place:place] = [f"        {line}" for line in body]
        with pytest.raises(ProgramRefused) as refused:
            translate(loaded("\n".join(lines) + "\n", tmp_path))
        assert refused.value.rule is not None and refused.value.place is not None
        assert (refused.value.rule.slug, refused.value.place.line) == (slug, place + broken + 1), "\n".join(lines)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 5000, 1000))
def test_many_random_programs_equal_sequential_execution(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 1000):
        check(tmp_path, seed)
