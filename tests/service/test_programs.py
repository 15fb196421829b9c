"""Programs as artifacts: forked, rolled back, upgraded after a preflight, exported, imported.

Answers and state are compared with those of the plain class, called sequentially.
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


FIRST_CALLS = [*paid(10, 5), *paid(7, account="ann"), *drawn(20, 12), *moved("eva", "ann")]
LATER_CALLS = [*drawn(3, 1), *paid(1, account="bob"), *moved("eva", "bob", "nobody")]


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
    """A stopped application, after the first calls."""
    accounts = ServedProgram(plane, tmp_path)
    accounts.create(CODE)
    with accounts.running():
        assert accounts.call(*FIRST_CALLS, request_ids="first-") == plainly(accounts.file, FIRST_CALLS)
    return accounts


def check_state(application: ServedProgram, calls: Sequence[Call]) -> None:
    """Compare the state with that of the class after these calls."""
    names = ("eva", "ann", "bob")
    queries = [*moved(*names), *(call for name in names for call in paid(0, account=name))]
    answers = [value for value, _ in plainly(application.file, [*calls, *queries])[-len(queries) :]]
    moves, balances = answers[:3], answers[3:]
    assert application.state("moves") == {name: each for name, each in zip(names, moves, strict=True) if each}
    merged = application.merged("moves", names)
    assert [0 if value is None else value["count"] for value in merged] == moves
    for name, each in zip(names, moves, strict=True):
        parts = application.parts("moves", name)
        assert sum(parts.values()) == each
        assert not each or application.merged_and_parts("moves", name) == ({"count": each}, parts)
    assert application.state("balances") == {name: each for name, each in zip(names, balances, strict=True) if each}


def check_calls(application: ServedProgram, before: Sequence[Call], calls: Sequence[Call]) -> None:
    """Compare the answers to ``calls``, and the state afterwards, with those of the class after ``before`` and
    ``calls``."""
    assert application.call(*calls) == plainly(application.file, [*before, *calls])[len(before) :]
    check_state(application, [*before, *calls])


def test_fork_continues_from_its_savepoint(plane: Plane, accounts: ServedProgram, tmp_path: Path) -> None:
    made = plane.post(f"{accounts.path}/savepoints", name="noon")
    assert made["state"] == "succeeded"
    with accounts.running():
        check_calls(accounts, FIRST_CALLS, LATER_CALLS)

    plane.post(f"{accounts.path}/fork", 201, name="forked", savepoint="noon", start=False)
    forked = ServedProgram(plane, tmp_path, "forked")
    others = [*paid(100, account="bob"), *drawn(99, account="bob"), *moved("bob", "eva")]
    with forked.running():
        check_state(forked, FIRST_CALLS)
        check_calls(forked, FIRST_CALLS, others)
    check_state(accounts, [*FIRST_CALLS, *LATER_CALLS])


def test_rollback_repeats_the_later_calls(plane: Plane, accounts: ServedProgram) -> None:
    """Calls are durable before they are answered, and the same calls are made: repeated requests get the same
    answers."""
    plane.post(f"{accounts.path}/savepoints", name="noon")
    with accounts.running():
        answers = accounts.call(*LATER_CALLS, request_ids="then-")
    left = plane.get(accounts.path)["branch"]
    check_state(accounts, [*FIRST_CALLS, *LATER_CALLS])

    target = {"savepoint": "noon"}
    confirm = plane.post(f"{accounts.path}/rollback", 200, dry_run=True, **target)["confirm"]
    assert plane.post(f"{accounts.path}/rollback", **target, confirm=confirm)["state"] == "succeeded"
    assert plane.get(accounts.path)["branch"] != left
    with accounts.running():
        assert accounts.call(*LATER_CALLS, request_ids="then-") == answers
        check_state(accounts, [*FIRST_CALLS, *LATER_CALLS])
        assert accounts.call(*FIRST_CALLS, request_ids="first-") == plainly(accounts.file, FIRST_CALLS)
        check_state(accounts, [*FIRST_CALLS, *LATER_CALLS])


@pytest.mark.long
def test_imported_bundle_continues_in_another_control_plane(
    accounts: ServedProgram, plane: Plane, tmp_path: Path
) -> None:
    bundle = exported(plane, accounts.name)
    with control_plane(tmp_path / "two") as other:
        assert imported(other, bundle, parameters={}, name="moved")["state"] == "succeeded"
        imported_program = ServedProgram(other, tmp_path, "moved")
        with imported_program.running():
            check_state(imported_program, FIRST_CALLS)
            again = [*FIRST_CALLS, *LATER_CALLS]  # the inbox is new: equal ids denote new calls
            assert (
                imported_program.call(*again, request_ids="first-")
                == plainly(imported_program.file, [*FIRST_CALLS, *again])[len(FIRST_CALLS) :]
            )


CHANGED_BODY = CODE.replace("if balance < amount:", "if balance < amount + 1:  # one has to stay")


def test_changed_method_body_is_accepted_and_state_is_kept(accounts: ServedProgram) -> None:
    report = accounts.preflight(CHANGED_BODY)
    assert report["ok"] and not report["comparison"]["warnings"]
    assert {part["verdict"] for part in report["comparison"]["entries"]} == {"same"}
    assert {part["verdict"] for part in report["comparison"]["tables"]} == {"same"}
    version = accounts.upgrade(CHANGED_BODY)
    assert version["number"] == 2
    with accounts.running():
        assert accounts.call(*drawn(3, 2)) == [(None, "ValueError: eva has 3"), (1, None)]


def changed(*pairs: tuple[str, str]) -> str:
    code = CODE
    for before, after in pairs:
        assert before in code
        code = code.replace(before, after)
    return code


MOVED_REMOVED = "Entry 'moved' is removed: it cannot be called, and waiting calls are not answered."
WITHOUT_MOVED = CODE[: CODE.index("    @entry\n    def moved")]
INCOMPATIBLE: dict[str, tuple[str, list[str]]] = {
    "type of a state element": (
        changed(
            ("balances: Partitioned[Map[str, int]]", "balances: Partitioned[Map[str, float]]"),
            ("balance: int = self.balances.get(account, 0)", "balance: int = round(self.balances.get(account, 0.0))"),
        ),
        ["State table 'balances': column 'value' cannot become double from bigint"],
    ),
    "class of a state element": (
        changed(("Partial[Counter[str]]", "Partial[Map[str, int]]"), ("add(account)", "add(account, 1)"))
        .replace(
            "moves: int = Global(self.moves).count(account)", "moves: int | None = Global(self.moves).get(account)"
        )
        .replace("return sum(Collection(moves))", "return len(Collection(moves))"),
        ["State table 'moves': column 'count' is no longer declared", "--allow-dropped-state moves.count"],
    ),
    "distribution of a state element": (
        changed(
            ("moves: Partial[", "moves: Partitioned["),
            ("Global(self.moves).count(account)", "self.moves.count(account)"),
            ("sum(Collection(moves))", "moves"),
        ),
        ["State table 'moves': partial state cannot become keyed state"],
    ),
    "name of a state element": (
        changed(("balances", "accounts")),
        ["State table 'balances' is no longer declared", "--allow-dropped-state balances"],
    ),
    "name of an entry": (
        changed(("def moved", "def times_moved")),
        [
            MOVED_REMOVED
            + " Entry 'times_moved' takes the same arguments: keep 'moved' until all callers use the new name.",
            "State table 'moved_answers' is no longer declared",
            "--allow-dropped-state moved_answers",
        ],
    ),
    "removed entry": (
        WITHOUT_MOVED,
        [MOVED_REMOVED],
    ),
}


def test_preflight_names_incompatible_changes(accounts: ServedProgram) -> None:
    for change, (code, expected) in INCOMPATIBLE.items():
        report = accounts.preflight(code)
        assert not report["ok"], change
        problems = " ".join(report["comparison"]["problems"])
        for text in expected:
            assert text in problems, (change, problems)
    renamed, _ = INCOMPATIBLE["name of an entry"]
    answer = accounts.plane.client.post(f"{accounts.path}/versions", json={"artifact": accounts.upload(renamed)})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:epochal:problem:incompatible-state")
    accounts.file.write_text(CODE)
    with accounts.running():
        check_calls(accounts, FIRST_CALLS, LATER_CALLS)


COMPATIBLE: dict[str, tuple[str, list[str]]] = {
    "additional entry": (
        CODE
        + "\n    @entry\n    def has(self, account: str) -> bool:\n        return self.balances.contains(account)\n",
        [],
    ),
    "additional state element": (
        changed(("    moves: Partial", "    names: Partitioned[Map[str, str]]\n    moves: Partial"))
        + "\n    @entry\n    def name(self, account: str, name: str) -> None:\n        self.names.put(account, name)\n",
        ["Operator 'names' is new and begins with empty state."],
    ),
    "additional parameter": (
        changed(
            ("def moved(self, account: str)", "def moved(self, account: str, times: int)"),
            ("return sum(Collection(moves))", "return times * sum(Collection(moves))"),
        ),
        ["Entry 'moved': argument 'times' is new, and null in waiting calls. New calls have to contain it."],
    ),
}


def test_preflight_names_changes_with_warnings(accounts: ServedProgram) -> None:
    for change, (code, expected) in COMPATIBLE.items():
        report = accounts.preflight(code)
        assert report["ok"], (change, report["comparison"]["problems"])
        assert report["comparison"]["warnings"] == expected, change
