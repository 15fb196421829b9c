"""Errors of an author's or a caller's input."""

from __future__ import annotations

from epochal.errors.root import EpochalError


class InvalidInput(EpochalError):
    """The request is not valid."""

    slug = "invalid-input"


class PipelineError(InvalidInput):
    """The pipeline is not valid."""

    slug = "invalid-pipeline"


class IncompatibleState(InvalidInput):
    """The version cannot continue from the existing state."""

    slug = "incompatible-state"


class ParameterError(InvalidInput):
    """The parameters do not match the parameters that the pipeline declares."""

    slug = "invalid-parameters"


class ArtifactError(InvalidInput):
    """The artifact cannot be used."""

    slug = "invalid-artifact"


class SchemaError(InvalidInput):
    """A schema is not valid."""

    slug = "invalid-schema"


class InvalidKey(InvalidInput):
    """The key does not match the key columns of the state table."""

    slug = "invalid-key"


class InvalidCursor(InvalidInput):
    """The cursor does not belong to this list."""

    slug = "invalid-cursor"


class InvalidArguments(InvalidInput):
    """The arguments of a call do not match its entry."""

    slug = "invalid-arguments"


class OptionError(InvalidInput):
    """An option is unknown or has an invalid value."""

    slug = "invalid-option"


class QueryRefused(InvalidInput):
    """The standing query is refused."""

    slug = "query-refused"

    def __init__(self, message: str | None = None, reason: str | None = None, position: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        """The slug of the reason; docs/reference/standing-queries.md lists them."""
        self.position = position
        """Position in the text of the query, from 1."""
