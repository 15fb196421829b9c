"""Whose pod is calling: by the token that the cluster has made for it, and the keys that the cluster publishes."""

from __future__ import annotations

import json
import os
import ssl
from typing import Any
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from epochal.errors import LauncherUnavailable
from epochal.service.domain.kubernetes.settings import AUDIENCE, TokenIssuer
from epochal.service.domain.kubernetes.tokens import PodIdentity, pod_of
from epochal.service.runtime.signed_tokens import Keys, SignedTokens

_SECONDS = 5.0
_MOST_BYTES = 1 << 20
_DISCOVERY, _KEYS = "/.well-known/openid-configuration", "/openid/v1/jwks"


class PodTokens:
    """Safe from any thread; the first call, and some later ones, ask the cluster."""

    def __init__(self, issuer: TokenIssuer) -> None:
        self._issuer = issuer
        self._tokens = SignedTokens(AUDIENCE, self._published)

    def identity(self, token: str) -> PodIdentity:
        """Raises ``Unauthenticated``; ``LauncherUnavailable`` while the cluster does not give its keys."""
        return pod_of(self._tokens.claims(token))

    def _published(self) -> Keys:
        try:
            cluster = self._opener()
            keys = self._document(cluster, self._issuer.keys or f"{_cluster()}{_KEYS}")
            issuer = self._issuer.issuer or str(self._document(cluster, f"{_cluster()}{_DISCOVERY}")["issuer"])
            return Keys(issuer, keys)
        except (OSError, KeyError, ValueError) as error:
            raise LauncherUnavailable(
                f"The keys by which tokens of pods are verified cannot be had from the cluster: {error!r}. Its API has "
                "to be reachable from the control plane, or `issuer` in the file of `--kubernetes` says where they are."
            ) from error

    def _opener(self) -> OpenerDirector:
        authority = self._issuer.authority
        there = authority is not None and authority.exists()
        trust = ssl.create_default_context(cafile=str(authority) if there else None)
        return build_opener(HTTPSHandler(context=trust), ProxyHandler({}), _NoRedirects())

    def _document(self, cluster: OpenerDirector, url: str) -> dict[str, Any]:
        """Raises ``OSError`` and ``ValueError``."""
        token, headers = self._issuer.token, {}
        if token is not None and token.exists():
            headers["Authorization"] = f"Bearer {token.read_text().strip()}"
        with cluster.open(Request(url, headers=headers), timeout=_SECONDS) as answer:
            document: dict[str, Any] = json.loads(answer.read(_MOST_BYTES))
        return document


class _NoRedirects(HTTPRedirectHandler):
    """One would carry the control plane's own token elsewhere; it is an error as any other answer but 200."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _cluster() -> str:
    """As a pod of the cluster is told. Raises ``KeyError`` elsewhere."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"
