"""The rules for programs: each with its reason, the fix and an example.

A test runs the examples and compares the refused line with the marked one. docs/reference/programs.md shows them.
"""

from __future__ import annotations

from epochal.programs.access_rules import ACCESS_RULES
from epochal.programs.rule import ProgramRefused as ProgramRefused
from epochal.programs.rule import Rule

_TEXT_RULES = (
    # Declarations.
    Rule(
        "no-source",
        "Source that Python cannot find",
        "a program is translated from its source code.",
        "Write the class in a file, and use no other decorator than @entry for its methods.",
    ),
    Rule(
        "no-entry",
        "A class without entries",
        "it can never be called.",
        "Decorate the methods that are called from outside with @entry.",
        """
class Counts:  #!
    counts: Partitioned[Counter[str]]
""",
    ),
    Rule(
        "state-class",
        "State whose class cannot be distributed",
        "state is stored, partitioned and recovered element by element, which only the state classes support.",
        "Use Map, Counter, Vector, Matrix or DenseMatrix.",
        """
class Counts:
    counts: Partitioned[dict[str, int]]  #!

    @entry
    def seen(self, word: str) -> None:
        pass
""",
    ),
    Rule(
        "undistributed",
        "State without a declared distribution",
        "it could be partitioned by key, or have several instances.",
        "Use Partitioned[..] if each access has a key, and Partial[..] if instances can be merged.",
        """
class Counts:
    counts: Counter[str]  #!

    @entry
    def seen(self, word: str) -> None:
        self.counts.add(word)
""",
    ),
    Rule(
        "element-types",
        "Types of keys or values that state does not support",
        "elements are rows of typed columns, and keys must have the same hash and order everywhere.",
        "Use the types that the state class supports.",
        """
class Prices:
    prices: Partitioned[Map[float, str]]  #!

    @entry
    def price(self, price: float, name: str) -> None:
        pass
""",
    ),
    Rule(
        "own-constructor",
        "A constructor",
        "an instance is created for each partition of the state, which contains the values of earlier calls.",
        "Remove it, and set initial state in an entry that is called once.",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    def __init__(self) -> None:  #!
        pass

    @entry
    def seen(self, word: str) -> None:
        self.counts.add(word)
""",
    ),
    Rule(
        "untyped-entry",
        "A parameter or an answer without a type, or with a type that is not a value",
        "calls and answers are rows of typed columns, which must be immutable.",
        "Annotate it with int, float, str, bool, bytes, tuple[..], Vector or X | None; answers can also be list or "
        "dict.",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    @entry
    def seen(self, word) -> None:  #!
        self.counts.add(word)
""",
    ),
    # Syntax.
    Rule(
        "unsupported-syntax",
        "Unsupported syntax",
        "it cannot be split into task elements, or has effects that the translation does not recognise.",
        "Use assignments to names, if, for, return, raise, expressions and method calls.",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    @entry
    def seen(self, word: str) -> int:
        if (n := self.counts.count(word)) > 3:  #!
            return 3
        return n
""",
    ),
    Rule(
        "while-loop",
        "A loop without bound",
        "a call that does not end would block its epoch.",
        "Use for .. in range(..) with a bound, and break.",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    @entry
    def fill(self, word: str) -> None:
        while self.counts.count(word) < 10:  #!
            self.counts.add(word)
""",
    ),
    Rule(
        "set",
        "A set",
        "the order of a set differs between processes and would affect results.",
        "Use a tuple, a list or the keys of a dict.",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    @entry
    def seen(self, line: str) -> None:
        for word in set(line.split()):  #!
            self.counts.add(word)
""",
    ),
    Rule(
        "unknown-call",
        "A call of an unsupported function",
        "a call can be computed again after a failure, on another machine: it must not do input or output, read a "
        "clock, use random numbers, or keep other state.",
        "Use builtins such as len, sum, sorted and range, functions of math, methods of values, and methods of the "
        "class "
        "that access no state. Pass times and random numbers as parameters.",
        """
import time

class Counts:
    last: Partitioned[Map[str, float]]

    @entry
    def seen(self, word: str) -> None:
        self.last.put(word, time.time())  #!
""",
    ),
    Rule(
        "global-variable",
        "A mutable variable of the module",
        "each process has its own copy of the module, and changes are not shared.",
        "Use a constant (a number, a string, a tuple of these), or store it in state.",
        """
LIMITS = {"a": 3}

class Counts:
    counts: Partitioned[Counter[str]]

    @entry
    def seen(self, word: str) -> None:
        self.counts.add(word, LIMITS[word])  #!
""",
    ),
    Rule(
        "attribute",
        "An attribute that is neither state nor a method",
        "stored values must be state, so that they are distributed and recovered.",
        "Declare it with Partitioned[..] or Partial[..], and change it with the methods of its class.",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    @entry
    def seen(self, word: str) -> None:
        self.last = word  #!
        self.counts.add(word)
""",
    ),
    Rule(
        "recursion",
        "Recursion",
        "its depth depends on data, and the limit differs between processes.",
        "Use a loop.",
        """
class Counts:
    counts: Partitioned[Counter[int]]

    def depth(self, n: int) -> int:
        return 0 if n <= 1 else 1 + self.depth(n // 2)  #!

    @entry
    def seen(self, n: int) -> None:
        self.counts.add(self.depth(n))
""",
    ),
)
RULES = {rule.slug: rule for rule in (*_TEXT_RULES, *ACCESS_RULES)}


def page() -> str:
    """Markdown: a section for each rule, with its example."""
    return "\n".join(_section(slug) for slug in RULES)


def _section(slug: str) -> str:
    rule = RULES[slug]
    text = f"**`{slug}`: {rule.title}.** {rule.why[0].upper()}{rule.why[1:]} {rule.fix}\n"
    if not rule.example:
        return text
    example = rule.example.strip().replace("  #!", f"  # {slug}")
    return f"{text}\n```text\n{example}\n```\n"
