"""The parameters of an application, in the one form that they have from the request to the driver."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

Parameters = Annotated[
    dict[str, JsonValue],
    Field(description="By name: values for the pipeline's `Parameters`. Sinks and sources may be named by them."),
]
"""JSON, as somebody has said it. The pipeline's own model checks it and fills in defaults where the pipeline is built
(``pipeline/artifact.py``), and nowhere else: what is kept, compared and shown is what was said."""
