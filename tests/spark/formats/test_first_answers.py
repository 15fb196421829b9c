"""A newer client, or driver, reads the answers of an older control plane: what they lack has a default.

``first_answers.json`` has the fields of all answers as they were before the first one was added.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import epochal.contracts
import epochal.wire
from epochal.client.models import Application, Operation
from epochal.wire.bodies import read

FIRST: dict[str, list[str]] = json.loads(Path(__file__).with_name("first_answers.json").read_text())


def answers() -> Iterator[type[BaseModel]]:
    for package in (epochal.wire, epochal.contracts):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == found.name:
                    yield value


def test_fields_that_were_added_to_an_answer_have_a_default() -> None:
    models = {model.__name__: model for model in answers() if model.__name__ in FIRST}
    assert {"ApplicationAnswer", "OperationAnswer", "ExecutionAnswer", "EpochRecord", "RecoveryPoint"} <= models.keys()
    added = {
        f"{name}.{field}": info
        for name, model in models.items()
        for field, info in model.model_fields.items()
        if (info.alias or field) not in FIRST[name]
    }
    assert {"ApplicationAnswer.revision", "OperationAnswer.cancel_requested_at"} <= added.keys()
    assert [place for place, info in added.items() if info.is_required()] == []


AT = "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("model", "answer", "default"),
    [
        (
            Application,
            {
                "name": "flights",
                "state": "created",
                "detail": None,
                "branch": "flights-1",
                "version": 1,
                "artifact": "0" * 64,
                "parameters": {},
                "configuration": {},
                "shadow": False,
                "head": None,
                "parent": None,
                "execution": None,
                "failure": None,
                "restarts": None,
                "created_at": AT,
                "updated_at": AT,
            },
            ("revision", ""),
        ),
        (
            Operation,
            {
                "id": "a",
                "kind": "export",
                "application": None,
                "state": "running",
                "progress": None,
                "result": None,
                "error": None,
                "created_at": AT,
                "finished_at": None,
            },
            ("cancel_requested_at", None),
        ),
    ],
)
def test_the_first_answers_are_read(
    model: type[BaseModel], answer: dict[str, Any], default: tuple[str, object]
) -> None:
    assert sorted(answer) == FIRST[model.__name__]
    field, value = default
    assert getattr(read(model, answer), field) == value
