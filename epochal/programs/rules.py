"""What a program is refused for: each rule with why it is one, what to do instead, and an example.

The examples are run by a test, which looks for the refusal at the line that they mark, and stand in docs/programs.md.
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
        "a program is translated from its source.",
        "Write the class into a file, and decorate its methods with nothing but @entry.",
    ),
    Rule(
        "no-entry",
        "A class without entries",
        "nothing could ever call it.",
        "Decorate the methods that are called from outside with @entry.",
        """
class Counts:  #!
    counts: Partitioned[Counter[str]]
""",
    ),
    Rule(
        "state-class",
        "State of a class that cannot be distributed",
        "state is kept, split and recovered element by element, which only the state classes can.",
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
        "State that does not say how it is distributed",
        "it could be split by key, or be there in several instances.",
        "Write Partitioned[..] where each access names its key, and Partial[..] where instances can be merged.",
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
        "Keys or values that state cannot hold",
        "elements are rows of typed columns, and keys are hashed and compared everywhere alike.",
        "Use the types that the state class names.",
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
        "an instance is made wherever a partition of the state is, which holds what earlier calls have left there.",
        "Remove it; set initial state in an entry that is called once.",
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
        "A parameter or an answer without a type, or of one that is no value",
        "calls and answers are rows of typed columns, and nothing may change them underway.",
        "Annotate it with int, float, str, bool, bytes, tuple[..], Vector or X | None; answers also with list or dict.",
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
        "Syntax that is not on the list",
        "it cannot be split into task elements, or has effects that a translation does not see.",
        "Write it with assignments to names, if, for, return, raise, expressions and calls of methods.",
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
        "a call that does not end would keep its epoch from ending.",
        "Write for .. in range(..) with a bound, and break.",
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
        "the order of a set differs from process to process, and would show in results.",
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
        "A call of something that is not on the list",
        "a call is computed again after a failure, maybe elsewhere: it must not do input or output, read a clock, draw "
        "a random number, or keep anything.",
        "Call builtins such as len, sum, sorted and range, functions of math, methods of values, and own methods that "
        "access no state; pass times and random numbers as parameters.",
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
        "A variable of the module that can change",
        "each process has the module for itself: what one changes no other one sees.",
        "Use a constant (a number, a text, a tuple of these), or keep it in state.",
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
        "whatever is kept has to be state, so that it is distributed and recovered.",
        "Declare it with Partitioned[..] or Partial[..], and change it by the methods of its class.",
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
        "how deep it goes depends on data, and each process has a bound of its own.",
        "Write a loop.",
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
