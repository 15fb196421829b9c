"""An identity provider on a loopback socket, which signs real tokens and publishes its keys."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from epochal.service.domain.identity import OidcSettings

AUDIENCE = "epochal"
CLIENT = "epochal-command-line"
BROWSER_CLIENT = "epochal-console"
CLIENT_SECRET = "correct horse: battery"
_NEW_KEYS: dict[str, Callable[[], Any]] = {
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
}


@dataclass
class IdentityProvider:
    """``keys``: algorithm and private key by name. ``published``: the names of the published keys."""

    url: str = ""
    keys: dict[str, tuple[str, Any]] = field(default_factory=dict)
    published: list[str] = field(default_factory=list)
    answers: bool = True
    asked: list[str] = field(default_factory=list)
    polls: list[str] = field(default_factory=list)
    """Errors returned to a device that polls for the login, one per poll, before the tokens."""
    lifetime_seconds: int = 600
    refresh_tokens: set[str] = field(default_factory=set)
    """Valid refresh tokens, for one use each."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    """Parameters of the request for each authorisation code, which is valid for one use."""
    id_claims: dict[str, Any] = field(default_factory=dict)
    """Changed claims of ID tokens."""
    refusal: str | None = None
    """Error with which browsers are sent back instead of a code."""

    def add(self, name: str, algorithm: str = "ES256") -> None:
        self.keys[name] = algorithm, _NEW_KEYS[algorithm]()
        self.published.append(name)

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Return the claims of a valid token. ``changed`` replaces claims; ``None`` removes a claim."""
        now = time.time()
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 600, "groups": ["readers"]}
        return {name: value for name, value in {**usual, **changed}.items() if value is not None}

    def token(self, key: str = "first", **changed: Any) -> str:
        """Sign a token, also with claims that the library would refuse to encode."""
        algorithm, private = self.keys[key]
        return jwt.PyJWS().encode(json.dumps(self.claims(**changed)).encode(), private, algorithm, {"kid": key})

    def settings(self, **changed: Any) -> OidcSettings:
        roles = {
            "readers": {"default": "viewer"},
            "builders": {"default": "author", "other": "viewer"},
            "owners": {"default": "admin"},
        }
        return OidcSettings.model_validate({"issuer": self.url, "audience": AUDIENCE, "roles": roles, **changed})

    def documents(self) -> dict[str, Any]:
        return {
            "/.well-known/openid-configuration": {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "device_authorization_endpoint": f"{self.url}/device",
                "token_endpoint": f"{self.url}/token",
                "authorization_endpoint": f"{self.url}/authorize?prompt=login",
                "revocation_endpoint": f"{self.url}/revoke",
            },
            "/keys": {"keys": [self._public(name) for name in self.published]},
        }

    def authorize(self, query: dict[str, str]) -> str:
        """Log in the person of a browser. Returns the URL to which the browser is sent back."""
        assert (query["response_type"], query["client_id"]) == ("code", BROWSER_CLIENT)
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        if self.refusal is not None:
            return f"{query['redirect_uri']}?{urlencode({'error': self.refusal, 'state': query['state']})}"
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state'], 'iss': self.url})}"

    def redeem(self, form: dict[str, str], authorization: str | None) -> tuple[int, dict[str, Any]]:
        """Exchange a code for tokens, once (RFC 6749, 7636)."""
        asked = self.codes.pop(form.get("code", ""), None)
        credentials = base64.b64encode(f"{BROWSER_CLIENT}:{quote(CLIENT_SECRET, safe='')}".encode()).decode()
        if authorization != f"Basic {credentials}":
            return 401, {"error": "invalid_client"}
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or (asked["redirect_uri"], asked["code_challenge"]) != (form["redirect_uri"], challenge):
            return 400, {"error": "invalid_grant"}
        claims = {"aud": BROWSER_CLIENT, "nonce": asked["nonce"], **self.id_claims}
        return 200, {"access_token": "opaque", "token_type": "Bearer", "id_token": self.token(**claims)}

    def answer(self, path: str, form: dict[str, str], authorization: str | None = None) -> tuple[int, dict[str, Any]]:
        """Answer a POST at the endpoints of RFC 8628, 6749 and 7009."""
        if path == "/token" and form.get("grant_type") == "authorization_code":
            return self.redeem(form, authorization)
        if form.get("client_id") != CLIENT:
            return 401, {"error": "invalid_client"}
        if path == "/device":
            uri = f"{self.url}/enter"
            code = {"device_code": "device", "user_code": "ABCD-EFGH", "verification_uri": uri}
            return 200, {**code, "interval": 0, "expires_in": 60}
        if path == "/revoke":
            self.refresh_tokens.discard(form["token"])
            return 200, {}
        if path != "/token":
            return 404, {}
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return 400, {"error": "invalid_grant"}
            self.refresh_tokens.remove(form["refresh_token"])
        elif form.get("device_code") != "device":
            return 400, {"error": "invalid_grant"}
        elif self.polls:
            return 400, {"error": self.polls.pop(0)}
        token_id = secrets.token_hex(8)
        self.refresh_tokens.add(token_id)
        token = self.token(jti=token_id, exp=time.time() + self.lifetime_seconds)
        return 200, {"access_token": token, "refresh_token": token_id, "expires_in": self.lifetime_seconds}

    def _public(self, name: str) -> dict[str, Any]:
        algorithm, private = self.keys[name]
        shown = jwt.get_algorithm_by_name(algorithm).to_jwk(private.public_key(), as_dict=True)
        return {**shown, "kid": name, "alg": algorithm, "use": "sig"}


@contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    provider = IdentityProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.asked.append(self.path)
            path, _, query = self.path.partition("?")
            if path == "/authorize":
                self.send_response(302)
                self.send_header("Location", provider.authorize(dict(parse_qsl(query))))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            document = provider.documents().get(self.path)
            self._answer(503 if not provider.answers else 404 if document is None else 200, document)

        def do_POST(self) -> None:
            provider.asked.append(self.path)
            form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            self._answer(
                *(provider.answer(self.path, form, self.headers["Authorization"]) if provider.answers else (503, None))
            )

        def _answer(self, status: int, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.url = f"http://127.0.0.1:{server.server_port}"
        provider.add("first")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join(60)
