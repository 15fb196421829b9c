"""Write the OpenAPI document of this checkout without descriptions and problems, from which the types are generated.

``python console/tools/openapi.py FILE``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from epochal.service.app import create_app
from epochal.service.domain.settings import Settings


def reduced(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the successful answers only: the console reads every problem as one type."""
    for operations in document["paths"].values():
        for operation in operations.values():
            if isinstance(operation, dict) and "responses" in operation:
                answers = operation["responses"]
                operation["responses"] = {status: answers[status] for status in answers if status < "4"}
                for answer in operation["responses"].values():
                    answer.pop("headers", None)
    reduced_document: dict[str, Any] = _without_texts(document)
    return reduced_document


def _without_texts(value: Any, names: bool = False) -> Any:
    """``names``: the members of ``value`` have names from the API, such as a property called ``description``."""
    if isinstance(value, list):
        return [_without_texts(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _without_texts(member, not names and name in ("properties", "schemas", "paths"))
        for name, member in value.items()
        if names or name not in ("description", "title", "summary", "examples")
    }


if __name__ == "__main__":
    document = json.loads(json.dumps(create_app(Settings()).openapi()))
    document["info"] = {"title": "Epochal", "version": "1"}
    Path(sys.argv[1]).write_text(json.dumps(reduced(document), indent=1, sort_keys=True) + "\n")
