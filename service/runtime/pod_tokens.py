"""Authentication of pods by the tokens that the cluster issues, with the keys that the cluster publishes."""

from __future__ import annotations

import os

from epochal.errors import LauncherUnavailable
from epochal.service.domain.kubernetes.pod_identity import PodIdentity, pod_of
from epochal.service.domain.kubernetes.pod_settings import AUDIENCE, TokenIssuer
from epochal.service.runtime.issuer_documents import IssuerDocuments
from epochal.service.runtime.signed_tokens import Keys, SignedTokens

_DISCOVERY, _KEYS = "/.well-known/openid-configuration", "/openid/v1/jwks"


class PodTokens:
    """Thread-safe; the first call, and some later ones, send requests to the cluster."""

    def __init__(self, issuer: TokenIssuer) -> None:
        self._issuer = issuer
        self._documents = IssuerDocuments(issuer.trust, issuer.token)
        self._tokens = SignedTokens(AUDIENCE, self._published)

    def identity(self, token: str) -> PodIdentity:
        """Raises ``Unauthenticated``; ``LauncherUnavailable`` while the cluster does not return its keys."""
        return pod_of(self._tokens.claims(token))

    def _published(self) -> Keys:
        document = self._documents.documents()
        try:
            keys = document(self._issuer.keys or f"{_cluster()}{_KEYS}")
            issuer = self._issuer.issuer or document(f"{_cluster()}{_DISCOVERY}")["issuer"]
            return Keys.of(str(issuer), keys)
        except (OSError, KeyError, ValueError) as error:
            raise LauncherUnavailable(
                f"The keys that verify tokens of pods cannot be read from the cluster: {error!r}. The "
                "cluster's API must be reachable from the control plane, or `issuer` in the file of `--kubernetes` "
                "must name the address of the keys."
            ) from error


def _cluster() -> str:
    """URL of the cluster's API, from the environment of a pod. Raises ``KeyError`` outside of a cluster."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"
