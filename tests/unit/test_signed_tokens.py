"""Tokens are accepted if the issuer signed them with a published key, for this audience and the present time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from epochal.errors import IssuerUnavailable, LauncherUnavailable, Unauthenticated
from epochal.service.domain.kubernetes.pod_identity import PodIdentity, pod_of
from epochal.service.runtime.signed_tokens import (
    AGAIN_SECONDS,
    KEPT_SECONDS,
    LONGEST_TOKEN,
    OUTAGE_SECONDS,
    Keys,
    SignedTokens,
)

ISSUER, AUDIENCE = "https://cluster.example", "epochal"
SIGNERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "rsa": ("RS256", lambda: rsa.generate_private_key(65537, 2048)),
    "ec": ("ES256", lambda: ec.generate_private_key(ec.SECP256R1())),
    "ed": ("EdDSA", ed25519.Ed25519PrivateKey.generate),
}


@dataclass
class Issuer:
    """Signs with its keys and publishes them; counts the requests for them."""

    keys: dict[str, tuple[str, Any]] = field(default_factory=dict)
    requests: int = 0
    answers: bool = True
    now: float = 0.0

    def add(self, name: str, kind: str = "ec") -> None:
        algorithm, make = SIGNERS[kind]
        self.keys[name] = (algorithm, make())

    def publish(self) -> Keys:
        self.requests += 1
        if not self.answers:
            raise LauncherUnavailable("no connection")
        return Keys.of(ISSUER, {"keys": [self.public(name) for name in self.keys]})

    def public(self, name: str) -> dict[str, Any]:
        algorithm, key = self.keys[name]
        return {**jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True), "kid": name}

    def sign(self, name: str = "first", headers: dict[str, Any] | None = None, **claims: Any) -> str:
        algorithm, key = self.keys[name]
        return jwt.encode(claims_of(**claims), key, algorithm, {"kid": name, **(headers or {})})

    def verifier(self) -> SignedTokens:
        return SignedTokens(AUDIENCE, self.publish, lambda: self.now)


def claims_of(**claims: Any) -> dict[str, Any]:
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "iat": time.time(), "exp": time.time() + 600}
    return {name: value for name, value in {**usual, **claims}.items() if value is not None}


@pytest.fixture
def issuer() -> Issuer:
    issuer = Issuer()
    issuer.add("first")
    return issuer


@pytest.mark.parametrize("kind", SIGNERS)
def test_tokens_of_the_issuer_are_accepted(issuer: Issuer, kind: str) -> None:
    issuer.add("own", kind)
    assert issuer.verifier().claims(issuer.sign("own", groups=["a"]))["groups"] == ["a"]
    assert issuer.verifier().claims(issuer.sign("own", aud=["other", AUDIENCE]))["sub"] == "ann"


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": 1}, "expired"),
        ({"exp": None}, "not valid"),
        ({"nbf": 1 << 40}, "not valid"),
        ({"iat": None}, "not valid"),
        ({"aud": "https://kubernetes.default.svc"}, "not issued for 'epochal'"),
        ({"aud": None}, "not valid"),
        ({"iss": "https://elsewhere.example"}, "not valid"),
        ({"iss": None}, "not valid"),
        ({"sub": None}, "not valid"),
    ],
)
def test_a_token_for_another_audience_or_time_is_refused(issuer: Issuer, claims: dict[str, Any], why: str) -> None:
    with pytest.raises(Unauthenticated, match=why):
        issuer.verifier().claims(issuer.sign(**claims))


def test_a_public_key_used_as_an_hmac_secret_is_refused(issuer: Issuer) -> None:
    """Algorithm confusion. Signed by hand, because the library refuses such keys."""
    issuer.add("own", "rsa")
    public = issuer.keys["own"][1].public_key()
    secret = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    parts = [part({"alg": "HS256", "typ": "JWT", "kid": "own"}), part(claims_of())]
    parts.append(encoded(hmac.digest(secret, ".".join(parts).encode(), hashlib.sha256)))
    with pytest.raises(Unauthenticated, match="not valid"):
        issuer.verifier().claims(".".join(parts))


def test_a_token_without_a_signature_is_refused(issuer: Issuer) -> None:
    for algorithm in ("none", "None", "NONE"):
        header = part({"alg": algorithm, "kid": "first"})
        for signature in ("", issuer.sign().rpartition(".")[2]):
            with pytest.raises(Unauthenticated, match="not valid"):
                issuer.verifier().claims(f"{header}.{part(claims_of())}.{signature}")


def test_a_changed_token_is_refused(issuer: Issuer) -> None:
    header, _, signature = issuer.sign().split(".")
    with pytest.raises(Unauthenticated, match="not valid"):
        issuer.verifier().claims(f"{header}.{part(claims_of(sub='admin'))}.{signature}")


def test_another_issuers_key_under_a_known_name_is_refused(issuer: Issuer) -> None:
    other = Issuer()
    other.add("first")
    with pytest.raises(Unauthenticated, match="not valid"):
        issuer.verifier().claims(other.sign())


@pytest.mark.parametrize("headers", [{"jwk": {"kty": "oct"}, "jku": "https://elsewhere.example/keys"}, {"kid": 7}])
def test_keys_in_the_header_of_a_token_are_ignored(issuer: Issuer, headers: dict[str, Any]) -> None:
    verifier, other = issuer.verifier(), Issuer()
    other.add("first")
    token = ".".join([part({"alg": "ES256", "kid": "first", **headers}), *other.sign().split(".")[1:]])
    with pytest.raises(Unauthenticated):
        verifier.claims(token)


@pytest.mark.parametrize("text", ["", "x", "a.b", "a.b.c", "....", "é.é.é", "x" * (LONGEST_TOKEN + 1)])
def test_malformed_tokens_are_refused(issuer: Issuer, text: str) -> None:
    with pytest.raises(Unauthenticated):
        issuer.verifier().claims(text)


def test_new_keys_are_fetched_and_withdrawn_keys_expire(issuer: Issuer) -> None:
    verifier, old = issuer.verifier(), issuer.sign()
    verifier.claims(old)
    issuer.add("second")
    issuer.now += AGAIN_SECONDS + 1
    verifier.claims(issuer.sign("second"))
    assert issuer.requests == 2
    del issuer.keys["first"]
    issuer.now += KEPT_SECONDS + 1
    with pytest.raises(Unauthenticated, match="does not publish"):
        verifier.claims(old)


def test_tokens_with_unknown_keys_do_not_flood_the_issuer(issuer: Issuer) -> None:
    verifier = issuer.verifier()
    verifier.claims(issuer.sign())
    for number in range(100):
        with pytest.raises(Unauthenticated, match="does not publish"):
            verifier.claims(issuer.sign(headers={"kid": str(number)}))
    assert issuer.requests == 1


def test_an_unreachable_issuer_is_not_contacted_for_each_call(issuer: Issuer) -> None:
    verifier, token = issuer.verifier(), issuer.sign()
    issuer.answers = False
    for _ in range(100):
        with pytest.raises(LauncherUnavailable, match="no connection"):
            verifier.claims(token)
    assert issuer.requests == 1
    issuer.answers = True
    issuer.now += AGAIN_SECONDS + 1
    verifier.claims(token)
    assert issuer.requests == 2


def test_callers_do_not_wait_for_the_retry_of_a_failed_issuer(issuer: Issuer) -> None:
    requested, resume = threading.Event(), threading.Event()
    verifier, token, publish = issuer.verifier(), issuer.sign(), issuer.publish
    issuer.answers = False
    with pytest.raises(LauncherUnavailable):
        verifier.claims(token)

    def hanging() -> Keys:
        requested.set()
        assert resume.wait(60)
        return publish()

    issuer.now += AGAIN_SECONDS + 1
    with patched(verifier, hanging), ThreadPoolExecutor(1) as others:
        first = others.submit(verifier.claims, token)
        assert requested.wait(60)
        for _ in range(10):
            with pytest.raises(LauncherUnavailable, match="no connection"):  # without a request to the issuer
                verifier.claims(token)
        assert not first.done()
        issuer.answers = True
        resume.set()
        assert first.result(60)["sub"] == "ann"
    assert verifier.claims(token)["sub"] == "ann"


def test_a_defect_while_keys_are_fetched_counts_as_an_unavailable_issuer(issuer: Issuer) -> None:
    def defect() -> Keys:
        raise RuntimeError("a defect")

    verifier, token = issuer.verifier(), issuer.sign()
    with patched(verifier, defect):
        with pytest.raises(RuntimeError):
            verifier.claims(token)
        with pytest.raises(IssuerUnavailable, match="a defect"):
            verifier.claims(token)


def test_known_keys_stay_valid_for_a_limited_time_during_an_outage(issuer: Issuer) -> None:
    verifier, token = issuer.verifier(), issuer.sign()
    verifier.claims(token)
    issuer.answers = False
    for _ in range(10):
        issuer.now += OUTAGE_SECONDS / 10
        verifier.claims(token)
    with pytest.raises(LauncherUnavailable):  # the key may have been published since
        verifier.claims(issuer.sign(headers={"kid": "another"}))
    issuer.now += 1
    with pytest.raises(LauncherUnavailable):
        verifier.claims(token)
    issuer.answers = True
    issuer.now += AGAIN_SECONDS + 1
    verifier.claims(token)


def test_tokens_with_known_keys_do_not_wait_for_a_hanging_issuer(issuer: Issuer) -> None:
    requested, resume = threading.Event(), threading.Event()
    verifier = issuer.verifier()
    verifier.claims(issuer.sign())
    publish = issuer.publish

    def hanging() -> Keys:
        requested.set()
        assert resume.wait(60)
        return publish()

    issuer.now += KEPT_SECONDS + 1
    issuer.add("second")
    with patched(verifier, hanging), ThreadPoolExecutor(2) as others:
        first = others.submit(verifier.claims, issuer.sign())
        assert requested.wait(60)
        new = others.submit(verifier.claims, issuer.sign("second"))
        assert verifier.claims(issuer.sign())["sub"] == "ann"  # does not wait for the issuer
        assert not first.done()
        assert not new.done()
        resume.set()
        assert new.result(60)["sub"] == first.result(60)["sub"] == "ann"
    assert issuer.requests == 2


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
def test_a_key_without_an_algorithm_is_valid_for_all_of_its_type(issuer: Issuer, algorithm: str) -> None:
    issuer.add("own", "rsa")
    public = issuer.public("own")
    public.pop("alg", None)
    verifier = SignedTokens(AUDIENCE, lambda: Keys.of(ISSUER, {"keys": [public]}))
    assert verifier.claims(jwt.encode(claims_of(), issuer.keys["own"][1], algorithm, {"kid": "own"}))["sub"] == "ann"


def test_a_key_with_an_algorithm_is_refused_for_others(issuer: Issuer) -> None:
    issuer.add("own", "rsa")
    verifier = SignedTokens(AUDIENCE, lambda: Keys.of(ISSUER, {"keys": [{**issuer.public("own"), "alg": "RS256"}]}))
    with pytest.raises(Unauthenticated, match="not for the algorithm"):
        verifier.claims(jwt.encode(claims_of(), issuer.keys["own"][1], "PS256", {"kid": "own"}))


@pytest.mark.parametrize("document", [{}, {"keys": None}, {"keys": {"a": 1}}, {"keys": "text"}])
def test_a_document_without_a_list_of_keys_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no list"):
        Keys.of(ISSUER, document)


def test_malformed_keys_are_ignored(issuer: Issuer) -> None:
    good = issuer.public("first")
    odd: list[Any] = [None, 7, "key", [], {}, {"kty": "RSA", "kid": "a"}, {"kty": "RSA", "kid": "a", "n": 1, "e": []}]
    odd += [{**good, "kid": "b", "x": None}, {**good, "kid": ["c"]}, {**good, "kid": "d", "alg": {}}, {"kty": ["EC"]}]
    odd += [
        {**good, "kid": "e", "alg": "HS256"},
        {**good, "kid": "f", "crv": "P-1"},
        {**good, "kid": "g", "use": "enc"},
    ]
    keys = Keys.of(ISSUER, {"keys": [*odd, good]}).by_name
    assert [name for name, by_algorithm in keys.items() if by_algorithm] == ["first"]
    verifier = SignedTokens(AUDIENCE, lambda: Keys.of(ISSUER, {"keys": [*odd, good]}))
    assert verifier.claims(issuer.sign())["sub"] == "ann"


@pytest.mark.parametrize("claims", [{"aud": 7}, {"aud": [7]}, {"exp": "x"}, {"exp": []}, {"iss": {}}, {"sub": 7}])
def test_malformed_claims_are_refused(issuer: Issuer, claims: dict[str, Any]) -> None:
    token = sign_anything(issuer, claims_of(**claims))
    with pytest.raises(Unauthenticated):
        issuer.verifier().claims(token)


def test_symmetric_keys_are_ignored() -> None:
    secret = {"kty": "oct", "kid": "own", "k": encoded(b"secret" * 8), "alg": "HS256"}
    verifier = SignedTokens(AUDIENCE, lambda: Keys.of(ISSUER, {"keys": [secret]}))
    with pytest.raises(Unauthenticated, match="does not publish"):
        verifier.claims(jwt.encode(claims_of(), b"secret" * 8, "HS256", {"kid": "own"}))


BOUND = {
    "sub": "system:serviceaccount:team:epochal-driver",
    "kubernetes.io": {
        "namespace": "team",
        "pod": {"name": "e-1", "uid": "u"},
        "serviceaccount": {"name": "epochal-driver", "uid": "v"},
    },
}


def test_a_token_bound_to_a_pod_identifies_it() -> None:
    assert pod_of(BOUND) == PodIdentity("team", "e-1", "u", "epochal-driver")


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": BOUND["sub"]},
        {**BOUND, "sub": "system:serviceaccount:other:epochal-driver"},
        {**BOUND, "kubernetes.io": {"namespace": "team", "serviceaccount": {"name": "epochal-driver"}}},
        {**BOUND, "kubernetes.io": {**BOUND["kubernetes.io"], "pod": {"name": "e-1", "uid": ""}}},  # type: ignore[dict-item]
        {**BOUND, "kubernetes.io": "pod"},
    ],
)
def test_a_token_without_a_pod_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        pod_of(claims)


@contextmanager
def patched(verifier: SignedTokens, ask: Callable[[], Keys]) -> Iterator[None]:
    before, verifier._ask = verifier._ask, ask
    yield
    verifier._ask = before


def sign_anything(issuer: Issuer, claims: dict[str, Any]) -> str:
    """Sign malformed claims, which the library refuses to do."""
    algorithm, key = issuer.keys["first"]
    return jwt.PyJWS().encode(json.dumps(claims).encode(), key, algorithm, {"kid": "first"})


def part(document: dict[str, Any]) -> str:
    return encoded(json.dumps(document).encode())


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
