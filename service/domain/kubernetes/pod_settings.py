"""Settings of a cluster, in the file named by ``epochal up --kubernetes``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from epochal.errors import OptionError
from epochal.service.domain.addresses import check_encrypted
from epochal.store_variables import is_secret_variable, reference_in
from epochal.wire.projects import DEFAULT_PROJECT

Label = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""A DNS label, as Kubernetes defines it."""
ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$")]
"""The name of a ConfigMap or Secret."""
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Quantity = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?([munkMGTPE]|[KMGTPE]i)?$")]
"""A quantity of Kubernetes: ``500m``, ``2Gi``."""
MOUNTED = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of the credentials that the cluster mounts into pods whose service account may call its API."""
AUDIENCE = "epochal"
"""Audience of the tokens that drivers present to a control plane; the cluster's own API does not accept them."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TokenIssuer(_Section):
    """Issuer of the tokens of service accounts. ``keys``: the URL of its public keys (JWKS).

    Unset ``issuer`` and ``keys`` are read from the cluster's API. ``authority``: file with the certificates to trust
    there; it has to exist if it is set. By default it is the pod's file, or the system's certificates outside a pod.
    ``token``: file with the bearer token to present there.
    """

    issuer: str | None = None
    keys: str | None = None
    authority: Path | None = MOUNTED / "ca.crt"
    token: Path | None = MOUNTED / "token"

    @field_validator("keys")
    @classmethod
    def _check_encrypted_keys(cls, keys: str | None) -> str | None:
        if keys is not None:
            check_encrypted(keys)
        return keys

    @property
    def trust(self) -> Path | None:
        """The file with the certificates to trust; ``None`` for the system's."""
        is_set = "authority" in self.model_fields_set
        return self.authority if is_set or (self.authority is not None and self.authority.exists()) else None


class KubernetesSettings(_Section):
    """Settings of drivers in pods: the cluster, the namespace and the pods."""

    namespaces: dict[str, Label] = Field(
        {DEFAULT_PROJECT: "epochal-applications"}, description="The namespace of each project's pods."
    )
    own_namespace: str | None = Field(
        None,
        description=("The control plane's own namespace, where no driver may run; null: the namespace of its pod."),
    )
    kubeconfig: Path | None = Field(
        None, description="Configuration of the access to the cluster; null: that of the pod, or of kubectl."
    )
    context: str | None = Field(None, description="Context of the kubeconfig; null: the current one.")
    issuer: TokenIssuer = TokenIssuer()
    image: str = Field(description="Image of drivers and executors, unless the application names one.")
    images: tuple[str, ...] = Field(
        (), description="Further images that applications may use; * matches any characters except a slash."
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    service_account: Label = Field("epochal-driver", description="Service account of drivers.")
    executor_service_account: Label = Field(
        "epochal-executor", description="Service account of executors, which mount no token of it."
    )
    builder_service_account: Label = Field(
        "epochal-builder", description="Service account of builders, which mount no token of it."
    )
    cpu: Quantity = Field("1", description="CPU request of a driver, unless the application sets one.")
    memory: Quantity = Field(
        "2Gi", description=("Memory request and limit of a driver, unless the application sets them.")
    )
    builder_cpu: Quantity = Field("500m", description="CPU request of a builder.")
    builder_memory: Quantity = Field("2Gi", description="Memory request and limit of a builder.")
    spare_builders: int = Field(
        1,
        ge=0,
        le=16,
        description=("Number of builders with a started Spark session that each control plane maintains."),
    )
    spare_drivers: int = Field(
        0,
        ge=0,
        le=16,
        description=(
            "Number of drivers with a started and trained Spark session that the leading control plane maintains."
        ),
    )
    template: dict[str, Any] = Field({}, description="Pod template of drivers and builders.")
    executor_template: dict[str, Any] = Field({}, description="Pod template of executors.")
    authority: ObjectName | None = Field(
        None,
        description=(
            "Config map in each project's namespace with the authority that pods trust for the control plane (ca.crt)."
        ),
    )
    store_secret: ObjectName | None = Field(
        None,
        description=(
            "Secret in each project's namespace whose keys are variables for access to the store; drivers, executors "
            "and builders receive them."
        ),
    )
    store_variables: dict[VariableName, str] = Field(
        {}, description="Further variables of these pods for access to the store, without secrets."
    )
    token_seconds: int = Field(3600, ge=600, le=86_400, description="Validity of a driver's token; it is renewed.")
    start_seconds: float = Field(300.0, gt=0, description="Timeout for the first heartbeat of a pod's driver.")
    grace_seconds: int = Field(60, ge=1, description="Grace period for the end of a driver whose pod is deleted.")

    @model_validator(mode="after")
    def _templates_are_pods(self) -> KubernetesSettings:
        for name, template in (("template", self.template), ("executor_template", self.executor_template)):
            unknown = set(template) - {"apiVersion", "kind", "metadata", "spec"}
            if unknown:
                raise ValueError(f"{name} has {', '.join(sorted(unknown))}: a pod template has metadata and spec")
        return self

    @field_validator("store_variables")
    @classmethod
    def _check_no_secret(cls, variables: dict[str, str]) -> dict[str, str]:
        """Users that can read pods can read their variables."""
        for name in sorted(variables):
            if is_secret_variable(name) and reference_in(variables[name]) is None:
                raise ValueError(
                    f"{name} is a secret; put it into the Secret that `store_secret` names, or set it to a reference "
                    "such as secret(file:/path)"
                )
        return variables

    def namespace(self, project: str) -> str:
        """Raises ``OptionError`` if the project has no namespace."""
        namespace = self.namespaces.get(project)
        if namespace is None:
            raise OptionError(
                f"The project {project!r} has no namespace, so its applications cannot run as pods. Add it to "
                "`namespaces` in the file that `epochal up --kubernetes` names, and start the control plane again."
            )
        return namespace

    def check_apart(self, own_namespace: str | None) -> None:
        """Raises ``OptionError`` if drivers would share a namespace with the control plane or with another project:
        they may start pods, and a pod can mount every secret of its namespace."""
        beside = [project for project, namespace in self.namespaces.items() if namespace == own_namespace]
        if beside:
            raise OptionError(
                f"Drivers of the project {beside[0]!r} would run in {own_namespace!r}, the control plane's own "
                "namespace, whose secrets they could read. Use separate namespaces for projects."
            )
        first: dict[str, str] = {}
        for project, namespace in self.namespaces.items():
            other = first.setdefault(namespace, project)
            if other != project:
                raise OptionError(
                    f"The projects {other!r} and {project!r} share the namespace {namespace!r}, where drivers of each "
                    "can read the secrets and delete the pods of the other. Give each project a separate namespace."
                )


def read_kubernetes_settings(path: Path) -> KubernetesSettings:
    """Read the settings from a file (JSON). Raises ``OptionError`` naming the field."""
    try:
        return KubernetesSettings.model_validate_json(path.read_bytes())
    except OSError as error:
        raise OptionError(f"--kubernetes: {path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the document"
        raise OptionError(f"--kubernetes: {path}: {field}: {first['msg'].removeprefix('Value error, ')}.") from None
