"""Random programs of the supported subset, as text, and random calls of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.kit.program_interpreter import Call

HEAD = """from __future__ import annotations

from epochal.programs import Collection, Counter, Global, Map, Matrix, Partial, Partitioned, Vector, entry, program


@program
class Random:
    a: Partitioned[Map[int, int]]
    b: Partitioned[Matrix[int]]
    c: Partial[Counter[int]]
    d: Partitioned[Counter[int]]
    m: Partial[Matrix[int]]

    def mixed(self, x: int, y: int) -> int:
        return (3 * x + y) % 5
"""
ELEMENTS = tuple("abcdm")
LARGE = 2**62


@dataclass
class _Entry:
    """An entry while it is written; ``variables`` hold an int at this point."""

    chance: random.Random
    variables: list[str] = field(default_factory=lambda: ["k", "x"])
    lines: list[str] = field(default_factory=list)
    initial: list[str] = field(default_factory=list)
    key: str = ""
    """The key of the current visit, which must not be reassigned."""
    last: bool = False
    """``True`` if no other state element is visited afterwards."""

    def put(self, depth: int, line: str) -> None:
        self.lines.append("    " * (2 + depth) + line)

    def pick(self, *choices: Any) -> Any:
        return self.chance.choice(choices)

    def maybe(self) -> bool:
        return self.chance.random() < 0.5

    def variable(self) -> str:
        return str(self.pick(*self.variables))

    def new(self, conditional: bool) -> str:
        """A new variable, with an initial value if it is assigned only on some paths."""
        name = f"v{len(self.variables) + len(self.initial)}"
        if conditional:
            self.initial.append(f"        {name}: int = {self.chance.randint(-2, 2)}")
        self.variables.append(name)
        return name

    def expression(self) -> str:
        x, y, n = self.variable(), self.variable(), self.chance.randint(-3, 5)
        return str(
            self.pick(
                x, f"{n}", f"{x} + {n}", f"{x} - {y}", f"{x} * {n}", f"{x} // ({y} - {n})", f"self.mixed({x}, {y})",
                f"max({x}, {y})", f"sum([i * {y} for i in range({x} % 4)])", f"len(str({x}))",
                f"({x} if {y} > {n} else {n})",
            )
        )  # fmt: skip

    def condition(self) -> str:
        return f"{self.variable()} {self.pick('<', '>', '==', '!=')} {self.chance.randint(-2, 4)}"

    # One visit to each element; `conditional`: the visit is below an `if`.

    def pure(self, depth: int, conditional: bool) -> None:
        match self.pick("assign", "augment", "return", "raise", "loop", "try", "nothing"):
            case "assign":
                value = self.expression()
                self.assign(depth, value, conditional)
            case "augment":
                value, name = self.expression(), self.variable()
                if name not in ("k", "x", self.key):
                    self.put(depth, f"{name} += {value}")
            case "return":
                self.put(depth, f"if {self.condition()}:")
                self.put(depth + 1, f"return {self.variable()}")
            case "raise":
                self.put(depth, f"if {self.condition()}:")
                self.put(depth + 1, f"raise ValueError(f'no {{{self.variable()}}}')")
            case "try":
                value, handled = f"{self.expression()} // {self.variable()}", self.expression()
                name = self.new(conditional)
                self.put(depth, "try:")
                self.put(depth + 1, f"{name} = {value}" if conditional else f"{name}: int = {value}")
                self.put(depth, "except ZeroDivisionError as error:")
                self.put(depth + 1, self.pick(f"{name} = {handled}", "return len(str(error))"))
            case "loop":
                value = self.expression()
                name = self.new(True)
                self.put(depth, f"for i in range({self.variable()} % 5):")
                self.put(depth + 1, f"{name} = {name} + i")
                self.put(depth + 1, f"if {self.condition()}:")
                self.put(depth + 2, self.pick("break", "continue"))
                self.put(depth + 1, f"{name} += {value}")

    def assign(self, depth: int, value: str, conditional: bool) -> None:
        name = self.new(conditional)
        self.put(depth, f"{name} = {value}" if conditional else f"{name}: int = {value}")

    def visit_a(self, depth: int, conditional: bool) -> None:
        key = self.key = self.variable()
        for _ in range(self.chance.randint(1, 3)):
            match self.pick("read", "put", "add", "guarded", "loop", "remove"):
                case "read":
                    self.assign(depth, f"self.a.get({key}, 0)", conditional)
                case "put":
                    self.put(depth, f"self.a.put({key}, {self.expression()})")
                case "add":
                    self.put(depth, f"self.a.add({key}, {self.pick(self.expression(), str(LARGE))})")
                case "guarded":
                    self.put(depth, f"if self.a.get({key}, 0) > {self.chance.randint(-2, 3)}:")
                    self.put(depth + 1, f"self.a.add({key}, {self.expression()})")
                    if self.maybe():
                        self.put(depth, "else:")
                        self.put(depth + 1, f"return self.a.get({key}, {self.variable()})")
                case "loop":
                    self.put(depth, "for i in range(4):")
                    self.put(depth + 1, f"self.a.add({key}, i + {self.variable()})")
                    self.put(depth + 1, f"if self.a.get({key}, 0) > {self.chance.randint(0, 9)}:")
                    self.put(depth + 2, "break")
                case "remove":
                    self.put(depth, f"self.a.remove({key})")
            if self.maybe():
                self.pure(depth, conditional)

    def visit_b(self, depth: int, conditional: bool) -> None:
        row = self.key = self.variable()
        self.put(depth, f"self.b.add({row}, {self.variable()}, {self.variable()})")
        if self.maybe():
            value = f"self.b.row({row}).get({self.variable()})"
            self.assign(depth, value, conditional)
        if self.maybe() and not conditional:
            name = f"row{len(self.lines)}"
            self.put(depth, f"{name}: Vector[int] = self.b.row({row})")
            self.assign(depth, f"{name}.dot(Vector({{i: 1 for i in range(3)}}))", conditional)

    def visit_c(self, depth: int, conditional: bool) -> None:
        if self.maybe() or conditional:
            self.put(depth, f"for i in range({self.variable()} % 3):")
            self.put(depth + 1, f"self.c.add(i + {self.variable()} % 2, {self.chance.randint(1, 3)})")
            return
        name = f"g{len(self.lines)}"
        self.put(depth, f"{name}: int = Global(self.c).count({self.variable()} % 3)")
        if self.maybe():
            self.put(depth, f"{name} = {name} * 2")
        if self.maybe():
            self.put(depth, "Global(self.c).add(0, 0)")
        self.assign(depth, f"sum(Collection({name}))", conditional)

    def visit_d(self, depth: int, conditional: bool) -> None:
        if not self.last or self.maybe():
            key = self.key = self.variable()
            self.put(depth, f"self.d.add({key}, {self.variable()})")
            self.assign(depth, f"self.d.count({key})", conditional)
            return
        self.put(depth, f"for i in range({self.variable()} % 4):")
        self.put(depth + 1, f"self.d.add(i + {self.variable()}, {self.pick(self.expression(), str(LARGE))})")
        if self.maybe():
            self.put(depth + 1, f"if i > {self.chance.randint(0, 2)}:")
            self.put(depth + 2, f"self.d.remove({self.variable()})")

    def visit_m(self, depth: int, conditional: bool) -> None:
        """Sums that return to zero, in some instances or in all together."""
        if self.maybe() or conditional:
            self.put(depth, f"for i in range({self.variable()} % 3):")
            self.put(depth + 1, f"self.m.add(i, {self.variable()} % 2, {self.chance.choice((-1, 1))})")
            return
        name = f"h{len(self.lines)}"
        self.put(depth, f"{name}: int = Global(self.m).get_element({self.variable()} % 3, {self.variable()} % 2)")
        if self.chance.random() < 0.2:
            self.put(depth, "Global(self.m).clear()")
        self.assign(depth, f"sum(Collection({name}))", conditional)


def random_program(chance: random.Random, elements: Sequence[str] = ELEMENTS) -> str:
    """The text of a module with a program ``Random``, whose entries ``e0``, ``e1``, .. take two integers."""
    order = chance.sample(elements, len(elements))
    left_out = {f"{name}:" for name in ELEMENTS if name not in elements}
    text = ["\n".join([*(line for line in HEAD.splitlines() if line[4:6] not in left_out), ""])]
    for number in range(chance.randint(1, 3)):
        entry = _Entry(chance)
        visited = [name for name in order if entry.maybe()]
        for name in visited:
            entry.last = name == visited[-1]
            entry.pure(0, False)
            visit = getattr(entry, f"visit_{name}")
            if entry.maybe():
                entry.put(0, f"if {entry.condition()}:")
                visit(1, True)
                if entry.maybe():
                    entry.put(0, "else:")
                    entry.pure(1, True)
                    entry.put(1, "pass")
            else:
                visit(0, False)
            entry.key = ""
        entry.put(0, f"return {entry.variable()}")
        head = [f"\n    @entry\n    def e{number}(self, k: int, x: int) -> int:", *entry.initial]
        text += ["\n".join([*head, *entry.lines]), "\n"]
    return "".join(text)


def random_epochs(chance: random.Random, entries: int) -> list[list[Call]]:
    """Calls, cut into epochs."""

    def call() -> Call:
        return Call(f"e{chance.randrange(entries)}", {"k": chance.randint(-2, 5), "x": chance.randint(-2, 5)})

    return [[call() for _ in range(chance.randrange(9))] for _ in range(chance.randint(1, 4))]
