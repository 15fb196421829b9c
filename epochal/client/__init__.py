"""The Python client of the control plane, with the resources of the REST API and typed answers.

Requires httpx and pydantic only; it can be installed and imported without Spark and without a web framework.
"""

from epochal.client.client import AsyncClient, Client
from epochal.client.models import (
    Application,
    Artifact,
    AuditEntry,
    Epoch,
    Event,
    Execution,
    Lineage,
    Operation,
    Savepoint,
    Snapshot,
    StateLookup,
    StateTable,
    StateValue,
    Token,
    Version,
)

__all__ = [
    "Application",
    "Artifact",
    "AsyncClient",
    "AuditEntry",
    "Client",
    "Epoch",
    "Event",
    "Execution",
    "Lineage",
    "Operation",
    "Savepoint",
    "Snapshot",
    "StateLookup",
    "StateTable",
    "StateValue",
    "Token",
    "Version",
]
