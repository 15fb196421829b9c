"""What an operator says of a cluster, in the file that ``epochal up --kubernetes`` names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from epochal.errors import OptionError
from epochal.service.domain.addresses import check_encrypted
from epochal.wire.projects import DEFAULT_PROJECT

Label = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""What Kubernetes calls a DNS label."""
ConfigMapName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$")]
Quantity = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?([munkMGTPE]|[KMGTPE]i)?$")]
"""A quantity of Kubernetes: ``500m``, ``2Gi``."""
MOUNTED = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""What the cluster puts into pods whose service account may call its API."""
AUDIENCE = "epochal"
"""Of the tokens that drivers show to a control plane; the cluster's own API takes none of them."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TokenIssuer(_Section):
    """Who signs the tokens of service accounts. ``keys``: the URL of its public keys (JWKS).

    ``issuer`` and ``keys`` are asked for from the cluster's API where they are not set. ``authority``: a file with the
    certificates to trust there, which has to exist if it is set; by default that of the pod, or the system's
    certificates outside a pod. ``token``: a file with the bearer token to show there.
    """

    issuer: str | None = None
    keys: str | None = None
    authority: Path | None = MOUNTED / "ca.crt"
    token: Path | None = MOUNTED / "token"

    @field_validator("keys")
    @classmethod
    def _nobody_else_answers(cls, keys: str | None) -> str | None:
        if keys is not None:
            check_encrypted(keys)
        return keys

    @property
    def trust(self) -> Path | None:
        """The file with the certificates to trust; ``None``: the system's."""
        is_set = "authority" in self.model_fields_set
        return self.authority if is_set or (self.authority is not None and self.authority.exists()) else None


class KubernetesSettings(_Section):
    """Where drivers run as pods, and as what."""

    namespaces: dict[str, Label] = Field(
        {DEFAULT_PROJECT: "epochal-applications"}, description="The namespace of each project's pods."
    )
    own_namespace: str | None = Field(
        None, description="The control plane's, where no driver may run; null: as its pod says."
    )
    kubeconfig: Path | None = Field(
        None, description="How the cluster is reached; null: as a pod of it does, or as kubectl."
    )
    context: str | None = Field(None, description="Of the kubeconfig; null: the current one.")
    issuer: TokenIssuer = TokenIssuer()
    image: str = Field(description="Of drivers and executors, where the application says none.")
    images: tuple[str, ...] = Field(
        (), description="Images that applications may ask for, beside it; * stands for any characters but a slash."
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    service_account: Label = Field("epochal-driver", description="Of drivers.")
    executor_service_account: Label = Field("epochal-executor", description="Of executors, which mount no token of it.")
    builder_service_account: Label = Field("epochal-builder", description="Of builders, which mount no token of it.")
    cpu: Quantity = Field("1", description="What a driver requests, where the application says nothing.")
    memory: Quantity = Field("2Gi", description="What a driver requests, and may have at most, likewise.")
    builder_cpu: Quantity = Field("500m", description="What a builder requests.")
    builder_memory: Quantity = Field("2Gi", description="What a builder requests, and may have at most.")
    spare_builders: int = Field(
        1, ge=0, le=16, description="Builders that each control plane keeps with Spark started, for what comes next."
    )
    spare_drivers: int = Field(
        0, ge=0, le=16, description="Drivers that the leading control plane keeps with Spark started and trained."
    )
    template: dict[str, Any] = Field({}, description="Pod template of drivers, and of builders.")
    executor_template: dict[str, Any] = Field({}, description="Pod template of executors.")
    authority: ConfigMapName | None = Field(
        None, description="A config map in each project's namespace: whom pods trust to be the control plane (ca.crt)."
    )
    token_seconds: int = Field(3600, ge=600, le=86_400, description="How long a driver's token is good; it is renewed.")
    start_seconds: float = Field(300.0, gt=0, description="So long a pod may take until its driver is heard.")
    grace_seconds: int = Field(60, ge=1, description="So long a driver may take to end when its pod is deleted.")

    @model_validator(mode="after")
    def _templates_are_pods(self) -> KubernetesSettings:
        for name, template in (("template", self.template), ("executor_template", self.executor_template)):
            unknown = set(template) - {"apiVersion", "kind", "metadata", "spec"}
            if unknown:
                raise ValueError(f"{name} has {', '.join(sorted(unknown))}: a pod template has metadata and spec")
        return self

    def namespace(self, project: str) -> str:
        """Raises ``OptionError`` where the project has none."""
        namespace = self.namespaces.get(project)
        if namespace is None:
            raise OptionError(
                f"The project {project!r} has no namespace, so its applications cannot run as pods. Add it to "
                "`namespaces` in the file that `epochal up --kubernetes` names, and start the control plane again."
            )
        return namespace

    def check_apart(self, own_namespace: str | None) -> None:
        """Raises ``OptionError`` where drivers would run beside the control plane or beside those of another project:
        they may start pods, and a pod can mount each secret of its namespace."""
        beside = [project for project, namespace in self.namespaces.items() if namespace == own_namespace]
        if beside:
            raise OptionError(
                f"Drivers of the project {beside[0]!r} would run in {own_namespace!r}, the control plane's own "
                "namespace, whose secrets they could read. Give projects namespaces of their own."
            )
        first: dict[str, str] = {}
        for project, namespace in self.namespaces.items():
            other = first.setdefault(namespace, project)
            if other != project:
                raise OptionError(
                    f"The projects {other!r} and {project!r} share the namespace {namespace!r}, where drivers of each "
                    "can read the secrets and end the pods of the other. Give each project a namespace of its own."
                )


def read_kubernetes_settings(path: Path) -> KubernetesSettings:
    """The settings in a file (JSON). Raises ``OptionError`` naming the field."""
    try:
        return KubernetesSettings.model_validate_json(path.read_bytes())
    except OSError as error:
        raise OptionError(f"--kubernetes: {path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the document"
        raise OptionError(f"--kubernetes: {path}: {field}: {first['msg'].removeprefix('Value error, ')}.") from None
