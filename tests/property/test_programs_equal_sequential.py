"""Random programs: the dataflow, at any parallelism and cut into any epochs, is the class run sequentially."""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from collections import Counter as Sum
from pathlib import Path
from typing import Any

import pytest

from epochal.programs.execution import Failed
from epochal.programs.interpreter import Call, Interpreter
from tests.property.random_programs import random_epochs, random_program

_NUMBERS = itertools.count()


def loaded(text: str, folder: Path) -> Any:
    """The program, from a file, where Python finds its source."""
    name = f"random_program_{next(_NUMBERS)}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.Random


def plainly(program: Any, call: Call) -> Any:
    try:
        return getattr(program, call.entry)(**call.arguments)
    except Exception as error:  # noqa: BLE001 # whatever the entry raises is its answer
        return Failed.of(error)


def check(folder: Path, seed: int) -> int:
    """Returns how many task elements the program has."""
    chance = random.Random(seed)
    text = random_program(chance)
    epochs = random_epochs(chance, text.count("@entry\n"))
    program = loaded(text, folder)
    running = Interpreter(program, parallelism := chance.randint(1, 4), chance)
    sequential = program()
    for epoch in epochs:
        assert running.epoch(epoch) == [plainly(sequential, call) for call in epoch], (seed, epochs, text)
        match chance.randrange(4):
            case 0:
                running.restart()
            case 1:
                running.rescale(parallelism := parallelism + chance.randrange(2))
    for name in "abd":
        assert repr(list(running.rows(name))) == repr(list(getattr(sequential, name).rows())), (seed, epochs, text)
    partial: Sum[Any] = Sum()
    for instance in running.instances("c"):
        partial.update(dict(instance.rows()))
    assert dict(partial) == dict(sequential.c.rows()), (seed, epochs, text)
    return len(running.dataflow.tasks)


def test_random_programs(tmp_path: Path) -> None:
    sizes = [check(tmp_path, seed) for seed in range(40)]
    assert max(sizes) > 8 and sum(sizes) > 150


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 5000, 1000))
def test_many_random_programs(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 1000):
        check(tmp_path, seed)
