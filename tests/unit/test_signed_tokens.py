"""Tokens signed by an issuer: only those are good that it has signed, for us, now, with a key that it publishes."""

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
    """Signs with its keys, and publishes them; counts how often it was asked."""

    keys: dict[str, tuple[str, Any]] = field(default_factory=dict)
    asked: int = 0
    answers: bool = True
    now: float = 0.0

    def add(self, name: str, kind: str = "ec") -> None:
        algorithm, make = SIGNERS[kind]
        self.keys[name] = (algorithm, make())

    def publish(self) -> Keys:
        self.asked += 1
        if not self.answers:
            raise LauncherUnavailable("nobody there")
        return Keys.of(ISSUER, {"keys": [self.public(name) for name in self.keys]})

    def public(self, name: str) -> dict[str, Any]:
        algorithm, key = self.keys[name]
        return {**jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True), "kid": name}

    def sign(self, name: str = "first", headers: dict[str, Any] | None = None, **claims: Any) -> str:
        algorithm, key = self.keys[name]
        return jwt.encode(said(**claims), key, algorithm, {"kid": name, **(headers or {})})

    def verifier(self) -> SignedTokens:
        return SignedTokens(AUDIENCE, self.publish, lambda: self.now)


def said(**claims: Any) -> dict[str, Any]:
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "somebody", "iat": time.time(), "exp": time.time() + 600}
    return {name: value for name, value in {**usual, **claims}.items() if value is not None}


@pytest.fixture
def issuer() -> Issuer:
    issuer = Issuer()
    issuer.add("first")
    return issuer


@pytest.mark.parametrize("kind", SIGNERS)
def test_what_an_issuer_has_signed_is_good(issuer: Issuer, kind: str) -> None:
    issuer.add("own", kind)
    assert issuer.verifier().claims(issuer.sign("own", groups=["a"]))["groups"] == ["a"]
    assert issuer.verifier().claims(issuer.sign("own", aud=["other", AUDIENCE]))["sub"] == "somebody"


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
def test_a_token_for_others_or_for_another_time_is_refused(issuer: Issuer, claims: dict[str, Any], why: str) -> None:
    with pytest.raises(Unauthenticated, match=why):
        issuer.verifier().claims(issuer.sign(**claims))


def test_who_signs_with_a_public_key_as_a_secret_is_refused(issuer: Issuer) -> None:
    """Algorithm confusion: made by hand, since the library refuses to sign so."""
    issuer.add("own", "rsa")
    public = issuer.keys["own"][1].public_key()
    secret = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    parts = [part({"alg": "HS256", "typ": "JWT", "kid": "own"}), part(said())]
    parts.append(encoded(hmac.digest(secret, ".".join(parts).encode(), hashlib.sha256)))
    with pytest.raises(Unauthenticated, match="not valid"):
        issuer.verifier().claims(".".join(parts))


def test_a_token_without_a_signature_is_refused(issuer: Issuer) -> None:
    for algorithm in ("none", "None", "NONE"):
        header = part({"alg": algorithm, "kid": "first"})
        for signature in ("", issuer.sign().rpartition(".")[2]):
            with pytest.raises(Unauthenticated, match="not valid"):
                issuer.verifier().claims(f"{header}.{part(said())}.{signature}")


def test_a_changed_token_is_refused(issuer: Issuer) -> None:
    header, _, signature = issuer.sign().split(".")
    with pytest.raises(Unauthenticated, match="not valid"):
        issuer.verifier().claims(f"{header}.{part(said(sub='admin'))}.{signature}")


def test_a_key_of_somebody_else_is_refused_also_under_a_known_name(issuer: Issuer) -> None:
    other = Issuer()
    other.add("first")
    with pytest.raises(Unauthenticated, match="not valid"):
        issuer.verifier().claims(other.sign())


@pytest.mark.parametrize("headers", [{"jwk": {"kty": "oct"}, "jku": "https://elsewhere.example/keys"}, {"kid": 7}])
def test_keys_that_a_token_names_itself_are_not_looked_at(issuer: Issuer, headers: dict[str, Any]) -> None:
    verifier, other = issuer.verifier(), Issuer()
    other.add("first")
    token = ".".join([part({"alg": "ES256", "kid": "first", **headers}), *other.sign().split(".")[1:]])
    with pytest.raises(Unauthenticated):
        verifier.claims(token)


@pytest.mark.parametrize("text", ["", "x", "a.b", "a.b.c", "....", "é.é.é", "x" * (LONGEST_TOKEN + 1)])
def test_what_is_no_token_is_refused(issuer: Issuer, text: str) -> None:
    with pytest.raises(Unauthenticated):
        issuer.verifier().claims(text)


def test_new_keys_are_found_and_withdrawn_ones_forgotten(issuer: Issuer) -> None:
    verifier, old = issuer.verifier(), issuer.sign()
    verifier.claims(old)
    issuer.add("second")
    issuer.now += AGAIN_SECONDS + 1
    verifier.claims(issuer.sign("second"))
    assert issuer.asked == 2
    del issuer.keys["first"]
    issuer.now += KEPT_SECONDS + 1
    with pytest.raises(Unauthenticated, match="does not publish"):
        verifier.claims(old)


def test_tokens_that_name_unknown_keys_do_not_flood_the_issuer(issuer: Issuer) -> None:
    verifier = issuer.verifier()
    verifier.claims(issuer.sign())
    for number in range(100):
        with pytest.raises(Unauthenticated, match="does not publish"):
            verifier.claims(issuer.sign(headers={"kid": str(number)}))
    assert issuer.asked == 1


def test_an_issuer_that_is_away_lets_nobody_in_who_is_not_known_and_is_not_asked_by_each_call(issuer: Issuer) -> None:
    verifier, token = issuer.verifier(), issuer.sign()
    issuer.answers = False
    for _ in range(100):
        with pytest.raises(LauncherUnavailable, match="nobody there"):
            verifier.claims(token)
    assert issuer.asked == 1
    issuer.answers = True
    issuer.now += AGAIN_SECONDS + 1
    verifier.claims(token)
    assert issuer.asked == 2


def test_callers_do_not_wait_while_an_issuer_that_has_failed_is_asked_again(issuer: Issuer) -> None:
    asked, goes_on = threading.Event(), threading.Event()
    verifier, token, publish = issuer.verifier(), issuer.sign(), issuer.publish
    issuer.answers = False
    with pytest.raises(LauncherUnavailable):
        verifier.claims(token)

    def hanging() -> Keys:
        asked.set()
        assert goes_on.wait(60)
        return publish()

    issuer.now += AGAIN_SECONDS + 1
    with patched(verifier, hanging), ThreadPoolExecutor(1) as others:
        first = others.submit(verifier.claims, token)
        assert asked.wait(60)
        for _ in range(10):
            with pytest.raises(LauncherUnavailable, match="nobody there"):  # here each would wait for the issuer
                verifier.claims(token)
        assert not first.done()
        issuer.answers = True
        goes_on.set()
        assert first.result(60)["sub"] == "somebody"
    assert verifier.claims(token)["sub"] == "somebody"


def test_a_defect_while_keys_are_read_is_not_a_bad_token_for_other_callers(issuer: Issuer) -> None:
    def defect() -> Keys:
        raise RuntimeError("a defect")

    verifier, token = issuer.verifier(), issuer.sign()
    with patched(verifier, defect):
        with pytest.raises(RuntimeError):
            verifier.claims(token)
        with pytest.raises(IssuerUnavailable, match="a defect"):
            verifier.claims(token)


def test_known_keys_are_good_through_an_outage_but_not_for_ever(issuer: Issuer) -> None:
    verifier, token = issuer.verifier(), issuer.sign()
    verifier.claims(token)
    issuer.answers = False
    for _ in range(10):
        issuer.now += OUTAGE_SECONDS / 10
        verifier.claims(token)
    with pytest.raises(LauncherUnavailable):  # it may have become known since
        verifier.claims(issuer.sign(headers={"kid": "another"}))
    issuer.now += 1
    with pytest.raises(LauncherUnavailable):
        verifier.claims(token)
    issuer.answers = True
    issuer.now += AGAIN_SECONDS + 1
    verifier.claims(token)


def test_who_has_a_known_key_does_not_wait_for_an_issuer_that_hangs(issuer: Issuer) -> None:
    asked, goes_on = threading.Event(), threading.Event()
    verifier = issuer.verifier()
    verifier.claims(issuer.sign())
    publish = issuer.publish

    def hanging() -> Keys:
        asked.set()
        assert goes_on.wait(60)
        return publish()

    issuer.now += KEPT_SECONDS + 1
    issuer.add("second")
    with patched(verifier, hanging), ThreadPoolExecutor(2) as others:
        first = others.submit(verifier.claims, issuer.sign())
        assert asked.wait(60)
        new = others.submit(verifier.claims, issuer.sign("second"))
        assert verifier.claims(issuer.sign())["sub"] == "somebody"  # here it would hang
        assert not first.done()
        assert not new.done()
        goes_on.set()
        assert new.result(60)["sub"] == first.result(60)["sub"] == "somebody"
    assert issuer.asked == 2


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
def test_a_key_that_names_no_algorithm_is_for_all_of_its_kind(issuer: Issuer, algorithm: str) -> None:
    issuer.add("own", "rsa")
    public = issuer.public("own")
    public.pop("alg", None)
    verifier = SignedTokens(AUDIENCE, lambda: Keys.of(ISSUER, {"keys": [public]}))
    assert verifier.claims(jwt.encode(said(), issuer.keys["own"][1], algorithm, {"kid": "own"}))["sub"] == "somebody"


def test_a_key_that_names_its_algorithm_is_for_no_other(issuer: Issuer) -> None:
    issuer.add("own", "rsa")
    verifier = SignedTokens(AUDIENCE, lambda: Keys.of(ISSUER, {"keys": [{**issuer.public("own"), "alg": "RS256"}]}))
    with pytest.raises(Unauthenticated, match="not for the algorithm"):
        verifier.claims(jwt.encode(said(), issuer.keys["own"][1], "PS256", {"kid": "own"}))


@pytest.mark.parametrize("document", [{}, {"keys": None}, {"keys": {"a": 1}}, {"keys": "text"}])
def test_a_document_without_a_list_of_keys_is_none(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no list"):
        Keys.of(ISSUER, document)


def test_keys_of_an_odd_shape_are_left_out(issuer: Issuer) -> None:
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
    assert verifier.claims(issuer.sign())["sub"] == "somebody"


@pytest.mark.parametrize("claims", [{"aud": 7}, {"aud": [7]}, {"exp": "x"}, {"exp": []}, {"iss": {}}, {"sub": 7}])
def test_claims_of_an_odd_shape_are_refused(issuer: Issuer, claims: dict[str, Any]) -> None:
    token = sign_anything(issuer, said(**claims))
    with pytest.raises(Unauthenticated):
        issuer.verifier().claims(token)


def test_keys_of_a_kind_that_has_secrets_are_not_taken() -> None:
    secret = {"kty": "oct", "kid": "own", "k": encoded(b"secret" * 8), "alg": "HS256"}
    verifier = SignedTokens(AUDIENCE, lambda: Keys.of(ISSUER, {"keys": [secret]}))
    with pytest.raises(Unauthenticated, match="does not publish"):
        verifier.claims(jwt.encode(said(), b"secret" * 8, "HS256", {"kid": "own"}))


BOUND = {
    "sub": "system:serviceaccount:team:epochal-driver",
    "kubernetes.io": {
        "namespace": "team",
        "pod": {"name": "e-1", "uid": "u"},
        "serviceaccount": {"name": "epochal-driver", "uid": "v"},
    },
}


def test_a_token_that_is_bound_to_a_pod_says_whose_it_is() -> None:
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
def test_a_token_that_is_bound_to_no_pod_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        pod_of(claims)


@contextmanager
def patched(verifier: SignedTokens, ask: Callable[[], Keys]) -> Iterator[None]:
    before, verifier._ask = verifier._ask, ask
    yield
    verifier._ask = before


def sign_anything(issuer: Issuer, claims: dict[str, Any]) -> str:
    """The library refuses to sign claims of another shape than theirs."""
    algorithm, key = issuer.keys["first"]
    return jwt.PyJWS().encode(json.dumps(claims).encode(), key, algorithm, {"kid": "first"})


def part(document: dict[str, Any]) -> str:
    return encoded(json.dumps(document).encode())


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
