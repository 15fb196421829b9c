"""Errors of the environment: servers, processes and this machine."""

from __future__ import annotations

from epochal.errors.root import EpochalError


class TooManyRequests(EpochalError):
    """The control plane is at its limit of requests of this kind. Nothing was started; repeat the call later."""

    slug = "too-many-requests"

    def __init__(self, message: str | None = None, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class InboxFull(TooManyRequests):
    """The inbox of the application is full; repeat the call when the application has caught up."""

    slug = "inbox-full"


class MisdirectedRequest(EpochalError):
    """This node does not serve such requests; another node does."""

    slug = "misdirected-request"


class SparkLost(EpochalError):
    """Spark's JVM has ended or does not respond; the next attempt starts a new JVM."""

    slug = "spark-lost"


class CatalogUnavailable(EpochalError):
    """The catalog is unreachable."""

    slug = "catalog-unavailable"


class CatalogFull(CatalogUnavailable):
    """The catalog cannot be written: no space is left on its disk. Free some space."""

    slug = "catalog-full"


class ClockDeviates(EpochalError):
    """The clock of the driver differs from the clock of the catalog's database by more than the tolerance."""

    slug = "clock-deviates"


class LauncherUnavailable(EpochalError):
    """The launcher of drivers does not respond: the state of drivers is unknown, and no driver is started."""

    slug = "launcher-unavailable"


class IssuerUnavailable(EpochalError):
    """The identity provider does not return the keys that verify tokens, so that tokens cannot be checked."""

    slug = "issuer-unavailable"


class CatalogVersion(EpochalError):
    """The catalog was created by another version of Epochal."""

    slug = "catalog-version"


class EnvironmentProblem(EpochalError):
    """A program or resource that Epochal requires is missing on this machine."""

    slug = "environment"
