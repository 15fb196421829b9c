"""The Python client of the control plane: the same nouns as the REST interface, typed answers, one error root.

Needs httpx and pydantic only; safe to install and import where there is no Spark and no web framework.
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
