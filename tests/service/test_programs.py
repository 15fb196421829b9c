"""Programs as other artifacts are: forked, rolled back, upgraded after a preflight, exported, imported.

What each call answers, and what state is there, is compared with the class as it is, one call after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from epochal.service.domain.settings import Settings
from tests.service.bundles import exported, imported
from tests.service.conftest import Plane, StandInSupervisor, free_port, http_client, serving
from tests.service.served_programs import Call, ProgramBuilder, ServedProgram, plainly

CODE = '''
from __future__ import annotations

from epochal.programs import Collection, Counter, Global, Map, Partial, Partitioned, entry, program


@program
class Accounts:
    """What is on accounts, and how often each was moved."""

    balances: Partitioned[Map[str, int]]
    moves: Partial[Counter[str]]

    @entry
    def pay_in(self, account: str, amount: int) -> int:
        """The balance after it."""
        self.balances.add(account, amount)
        balance: int = self.balances.get(account, 0)
        self.moves.add(account)
        return balance

    @entry
    def draw(self, account: str, amount: int) -> int:
        balance: int = self.balances.get(account, 0)
        if balance < amount:
            raise ValueError(f"{account} has {balance}")
        self.balances.add(account, -amount)
        balance = balance - amount
        self.moves.add(account)
        return balance

    @entry
    def moved(self, account: str) -> int:
        """By all instances."""
        moves: int = Global(self.moves).count(account)
        return sum(Collection(moves))
'''


def paid(*amounts: int, account: str = "eva") -> list[Call]:
    return [("pay_in", {"account": account, "amount": amount}) for amount in amounts]


def drawn(*amounts: int, account: str = "eva") -> list[Call]:
    return [("draw", {"account": account, "amount": amount}) for amount in amounts]


def moved(*accounts: str) -> list[Call]:
    return [("moved", {"account": account}) for account in accounts]


FIRST = [*paid(10, 5), *paid(7, account="ann"), *drawn(20, 12), *moved("eva", "ann")]
THEN = [*drawn(3, 1), *paid(1, account="bob"), *moved("eva", "bob", "nobody")]


@contextmanager
def control_plane(folder: Path) -> Iterator[Plane]:
    settings = Settings(data=folder, port=free_port())
    supervisor = StandInSupervisor()
    with serving(settings, supervisor, ProgramBuilder()) as (control, token), http_client(settings, token) as client:
        yield Plane(control, client, settings, supervisor, [])


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with control_plane(tmp_path / "one") as plane:
        yield plane


@pytest.fixture
def accounts(plane: Plane, tmp_path: Path) -> ServedProgram:
    """Stopped, after the first calls."""
    accounts = ServedProgram(plane, tmp_path)
    accounts.create(CODE)
    with accounts.running():
        assert accounts.call(*FIRST, request_ids="first-") == plainly(accounts.file, FIRST)
    return accounts


def check_state(application: ServedProgram, calls: Sequence[Call]) -> None:
    """That of the class after these calls."""
    names = ("eva", "ann", "bob")
    asked = [*moved(*names), *(call for name in names for call in paid(0, account=name))]
    answers = [value for value, _ in plainly(application.file, [*calls, *asked])[-len(asked) :]]
    moves, balances = answers[:3], answers[3:]
    assert application.state("moves") == {name: each for name, each in zip(names, moves, strict=True) if each}
    together = application.together("moves", names)
    assert [0 if value is None else value["count"] for value in together] == moves
    for name, each in zip(names, moves, strict=True):
        parts = application.parts("moves", name)
        assert sum(parts.values()) == each
        assert not each or application.found("moves", name) == ({"count": each}, parts)
    assert application.state("balances") == {name: each for name, each in zip(names, balances, strict=True) if each}


def answered_after(application: ServedProgram, before: Sequence[Call], calls: Sequence[Call]) -> None:
    """Running, after ``before``: what these calls answer, and leave."""
    assert application.call(*calls) == plainly(application.file, [*before, *calls])[len(before) :]
    check_state(application, [*before, *calls])


def test_a_fork_goes_on_from_its_savepoint(plane: Plane, accounts: ServedProgram, tmp_path: Path) -> None:
    made = plane.post(f"{accounts.path}/savepoints", name="noon")
    assert made["state"] == "succeeded"
    with accounts.running():
        answered_after(accounts, FIRST, THEN)

    plane.post(f"{accounts.path}/fork", 201, name="forked", savepoint="noon", start=False)
    forked = ServedProgram(plane, tmp_path, "forked")
    others = [*paid(100, account="bob"), *drawn(99, account="bob"), *moved("bob", "eva")]
    with forked.running():
        check_state(forked, FIRST)
        answered_after(forked, FIRST, others)
    check_state(accounts, [*FIRST, *THEN])


def test_a_rollback_makes_the_calls_after_it_once_more(plane: Plane, accounts: ServedProgram) -> None:
    """They were durable before they were answered, and are the same calls: who asks again gets the same answers."""
    plane.post(f"{accounts.path}/savepoints", name="noon")
    with accounts.running():
        answers = accounts.call(*THEN, request_ids="then-")
    left = plane.get(accounts.path)["branch"]
    check_state(accounts, [*FIRST, *THEN])

    target = {"savepoint": "noon"}
    confirm = plane.post(f"{accounts.path}/rollback", 200, dry_run=True, **target)["confirm"]
    assert plane.post(f"{accounts.path}/rollback", **target, confirm=confirm)["state"] == "succeeded"
    assert plane.get(accounts.path)["branch"] != left
    with accounts.running():
        assert accounts.call(*THEN, request_ids="then-") == answers
        check_state(accounts, [*FIRST, *THEN])
        assert accounts.call(*FIRST, request_ids="first-") == plainly(accounts.file, FIRST)
        check_state(accounts, [*FIRST, *THEN])


@pytest.mark.long
def test_a_bundle_goes_on_elsewhere(accounts: ServedProgram, plane: Plane, tmp_path: Path) -> None:
    bundle = exported(plane, accounts.name)
    with control_plane(tmp_path / "two") as other:
        assert imported(other, bundle, parameters={}, name="moved")["state"] == "succeeded"
        there = ServedProgram(other, tmp_path, "moved")
        with there.running():
            check_state(there, FIRST)
            again = [*FIRST, *THEN]  # the inbox is a new one: the same ids are other calls there
            assert there.call(*again, request_ids="first-") == plainly(there.file, [*FIRST, *again])[len(FIRST) :]


BODY = CODE.replace("if balance < amount:", "if balance < amount + 1:  # one has to stay")


def test_another_body_of_a_method_is_taken_and_state_goes_on(accounts: ServedProgram) -> None:
    report = accounts.preflight(BODY)
    assert report["ok"] and not report["comparison"]["warnings"]
    assert {part["verdict"] for part in report["comparison"]["entries"]} == {"same"}
    assert {part["verdict"] for part in report["comparison"]["tables"]} == {"same"}
    version = accounts.upgrade(BODY)
    assert version["number"] == 2
    with accounts.running():
        assert accounts.call(*drawn(3, 2)) == [(None, "ValueError: eva has 3"), (1, None)]


def changed(*pairs: tuple[str, str]) -> str:
    code = CODE
    for before, after in pairs:
        assert before in code
        code = code.replace(before, after)
    return code


GONE = "Entry 'moved' is removed: it cannot be called, and waiting calls are not answered."
NO_MOVED = CODE[: CODE.index("    @entry\n    def moved")]
REFUSED: dict[str, tuple[str, list[str]]] = {
    "another type of a state element": (
        changed(
            ("balances: Partitioned[Map[str, int]]", "balances: Partitioned[Map[str, float]]"),
            ("balance: int = self.balances.get(account, 0)", "balance: int = round(self.balances.get(account, 0.0))"),
        ),
        ["State table 'balances': column 'value' cannot become double from bigint"],
    ),
    "another class of a state element": (
        changed(("Partial[Counter[str]]", "Partial[Map[str, int]]"), ("add(account)", "add(account, 1)"))
        .replace(
            "moves: int = Global(self.moves).count(account)", "moves: int | None = Global(self.moves).get(account)"
        )
        .replace("return sum(Collection(moves))", "return len(Collection(moves))"),
        ["State table 'moves': column 'count' is no longer declared", "--allow-dropped-state moves.count"],
    ),
    "another distribution": (
        changed(
            ("moves: Partial[", "moves: Partitioned["),
            ("Global(self.moves).count(account)", "self.moves.count(account)"),
            ("sum(Collection(moves))", "moves"),
        ),
        ["State table 'moves': partial state cannot become keyed state"],
    ),
    "another name of a state element": (
        changed(("balances", "accounts")),
        ["State table 'balances' is no longer declared", "--allow-dropped-state balances"],
    ),
    "another name of an entry": (
        changed(("def moved", "def times_moved")),
        [
            GONE + " Entry 'times_moved' takes the same arguments: keep 'moved' until all callers use the new name.",
            "State table 'moved_answers' is no longer declared",
            "--allow-dropped-state moved_answers",
        ],
    ),
    "no entry any more": (
        NO_MOVED,
        [GONE],
    ),
}


def test_preflight_says_by_name_what_cannot_be(accounts: ServedProgram) -> None:
    for what, (code, expected) in REFUSED.items():
        report = accounts.preflight(code)
        assert not report["ok"], what
        said = " ".join(report["comparison"]["problems"])
        for text in expected:
            assert text in said, (what, said)
    renamed, _ = REFUSED["another name of an entry"]
    answer = accounts.plane.client.post(f"{accounts.path}/versions", json={"artifact": accounts.upload(renamed)})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:epochal:problem:incompatible-state")
    accounts.file.write_text(CODE)
    with accounts.running():
        answered_after(accounts, FIRST, THEN)


TAKEN: dict[str, tuple[str, list[str]]] = {
    "another entry": (
        CODE
        + "\n    @entry\n    def has(self, account: str) -> bool:\n        return self.balances.contains(account)\n",
        [],
    ),
    "a state element more": (
        changed(("    moves: Partial", "    names: Partitioned[Map[str, str]]\n    moves: Partial"))
        + "\n    @entry\n    def name(self, account: str, name: str) -> None:\n        self.names.put(account, name)\n",
        ["Operator 'names' is new and begins with empty state."],
    ),
    "another parameter": (
        changed(
            ("def moved(self, account: str)", "def moved(self, account: str, times: int)"),
            ("return sum(Collection(moves))", "return times * sum(Collection(moves))"),
        ),
        ["Entry 'moved': argument 'times' is new, and null in waiting calls. New calls have to contain it."],
    ),
}


def test_preflight_says_by_name_what_is_to_be_known(accounts: ServedProgram) -> None:
    for what, (code, expected) in TAKEN.items():
        report = accounts.preflight(code)
        assert report["ok"], (what, report["comparison"]["problems"])
        assert report["comparison"]["warnings"] == expected, what
