"""What a program is refused for: each rule with why it is one, what to do instead, and an example.

The examples are run by a test, which looks for the refusal at the line that they mark, and stand in docs/programs.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.errors import PipelineError

if TYPE_CHECKING:
    from epochal.programs.source import Place


class ProgramRefused(PipelineError):
    """The program cannot be translated to a dataflow."""

    slug = "program-refused"

    def __init__(self, message: str | None = None, rule: Rule | None = None, place: Place | None = None) -> None:
        super().__init__(message)
        self.rule = rule
        self.place = place


@dataclass(frozen=True)
class Rule:
    """``example``: the body of a program in which the line that ends with ``#!`` is refused, first of all."""

    slug: str
    title: str
    why: str
    fix: str
    example: str = ""

    def refuse(self, place: Place | None, what: str) -> ProgramRefused:
        """The error. ``what``: what was found, to begin a sentence with."""
        where = "" if place is None else f"{place}: "
        return ProgramRefused(f"{where}{what}: {self.why} {self.fix} [{self.slug}]", self, place)


def _rules(*rules: Rule) -> dict[str, Rule]:
    return {rule.slug: rule for rule in rules}


RULES = _rules(
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
    # Where state is accessed.
    Rule(
        "state-as-value",
        "State that is passed on or given another name",
        "which access is made where has to be seen in the text.",
        "Call a method on it there: self.counts.add(..), or Global(self.counts).value().",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    @entry
    def seen(self, word: str) -> None:
        mine = self.counts  #!
        mine.add(word)
""",
    ),
    Rule(
        "state-in-inner-scope",
        "State in a comprehension, a lambda or a generator",
        "these cannot be split into task elements.",
        "Write a for loop, or read the state into a variable before.",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    @entry
    def known(self, line: str) -> int:
        return sum([self.counts.count(word) for word in line.split()])  #!
""",
    ),
    Rule(
        "state-in-try",
        "State within try",
        "the handler would have to go along with the call to where the state is.",
        "Do within try what can fail, and access the state after it.",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    @entry
    def seen(self, word: str) -> None:
        try:
            self.counts.add(word)  #!
        except ValueError:
            pass
""",
    ),
    Rule(
        "state-in-method",
        "State in a method that is no entry",
        "methods are called within a task element, which stays where it is.",
        "Access state in the entry, and pass what was read to the method.",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    def more(self, word: str) -> int:
        return self.counts.count(word) + 1  #!

    @entry
    def seen(self, word: str) -> int:
        return self.more(word)
""",
    ),
    Rule(
        "unknown-access",
        "A method that the state class does not have",
        "only the methods of the state classes are known to read or write.",
        "Use one of those that docs/programs.md lists.",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    @entry
    def seen(self, word: str) -> None:
        self.counts.update(word)  #!
""",
    ),
    Rule(
        "no-access-key",
        "Access to partitioned state without a key",
        "the elements are on many partitions, and nothing says which one is meant.",
        "Use a method that names a key; or declare the state Partial, and merge what its instances give.",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    @entry
    def most(self) -> tuple[tuple[str, int], ...]:
        return self.counts.top(3)  #!
""",
    ),
    Rule(
        "key-expression",
        "A key that is computed within the access",
        "the key is needed before, to know where the access is made.",
        "Assign it to a variable with a type first: word: str = line.strip(), and use that as the key.",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    @entry
    def seen(self, word: str) -> None:
        self.counts.add(word.lower())  #!
""",
    ),
    Rule(
        "other-partitioning",
        "Access by another key than the state is partitioned by",
        "a matrix that is split by row has no column in one place, and the other way round.",
        "Declare it PartitionedByColumn[Matrix] or Partitioned[Matrix], access it one way, or keep a second matrix.",
        """
class Ratings:
    ratings: Partitioned[Matrix]

    @entry
    def of_item(self, item: int) -> Vector:
        return self.ratings.column(item)  #!
""",
    ),
    Rule(
        "global-of-partitioned",
        "Global access to partitioned state",
        "its instances hold different keys, and are never all asked.",
        "Declare it Partial, or access it by key.",
        """
class Counts:
    counts: Partitioned[Counter[str]]

    @entry
    def most(self) -> int:
        n: int = Global(self.counts).size()  #!
        return sum(Collection(n))
""",
    ),
    Rule(
        "two-accesses",
        "One statement that accesses two state elements, or one of them by two keys",
        "a task element is in one place, and statements are not divided.",
        "Assign what is read first to a variable with a type, and use that in the next statement.",
        """
class Words:
    names: Partitioned[Map[str, str]]
    counts: Partitioned[Counter[str]]

    @entry
    def seen(self, word: str) -> None:
        self.counts.add(self.names.get(word, word))  #!
""",
    ),
    Rule(
        "second-visit",
        "A second visit to a state element, by another key",
        "each call visits a state element once: between two visits other calls come in between, which a run one after "
        "the other would not show. So a transfer that checks one account and writes two lets two calls pass the check "
        "that only one can.",
        "Put what one call checks and changes under one key (a common owner of both accounts); or make it two calls, "
        "one that reserves under a key of the transfer, and one that settles; or, where nothing is checked, write all "
        "of it in one loop at the end: for account, change in ((source, -amount), (target, amount)): "
        "self.accounts.add(account, change).",
        """
class Bank:
    accounts: Partitioned[Map[str, int]]

    @entry
    def transfer(self, source: str, target: str, amount: int) -> bool:
        if self.accounts.get(source, 0) < amount:
            return False
        self.accounts.add(source, -amount)
        self.accounts.add(target, amount)  #!
        return True
""",
    ),
    Rule(
        "cyclic-order",
        "State elements that are visited in different orders",
        "calls of one epoch go through state elements one after the other: there has to be an order that suits all "
        "entries, or a later call overtakes an earlier one.",
        "Access them in the same order in all entries, or keep what belongs together in one state element.",
        """
class Stock:
    stock: Partitioned[Map[str, int]]
    orders: Partitioned[Map[str, int]]

    @entry
    def order(self, item: str, order: str) -> None:
        self.stock.add(item, -1)
        self.orders.put(order, 1)

    @entry
    def cancel(self, item: str, order: str) -> None:
        self.orders.remove(order)
        self.stock.add(item, 1)  #!
""",
    ),
    Rule(
        "loop-over-state",
        "A loop whose rounds access state in other places",
        "each round would be a way there and back, and other calls would come in between.",
        "Only write in it, to one partitioned state element and without using what comes of it; or use partial state, "
        "which a loop reads and writes in one place.",
        """
class Words:
    counts: Partitioned[Counter[str]]

    @entry
    def known(self, line: str) -> int:
        known = 0
        for word in line.split():  #!
            known = known + self.counts.count(word)
        return known
""",
    ),
    Rule(
        "after-fan-out",
        "State after a loop that writes to many keys",
        "its writes are underway to many partitions, and nobody waits for them.",
        "Access all other state before the loop.",
        """
class Words:
    counts: Partitioned[Counter[str]]
    lines: Partitioned[Counter[int]]

    @entry
    def line(self, number: int, line: str) -> None:
        for word in line.split():
            self.counts.add(word)
        self.lines.add(number)  #!
""",
    ),
    # What crosses edges.
    Rule(
        "untyped-variable",
        "A variable without a type that is used in another task element",
        "it is sent there as a column, which has a type.",
        "Annotate it where it is first assigned: row: Vector = ..; before a loop: word: str.",
        """
class Words:
    names: Partitioned[Map[str, str]]
    counts: Partitioned[Counter[str]]

    @entry
    def seen(self, word: str) -> None:
        name = self.names.get(word, word)  #!
        self.counts.add(name)
""",
    ),
    Rule(
        "mutable-variable",
        "A variable that can be changed, or is no value, and is used in another task element",
        "a copy is sent: what is changed afterwards here or there would not be seen there or here.",
        "Use int, float, str, bool, bytes, tuple[..], Vector or X | None.",
        """
class Words:
    names: Partitioned[Map[str, str]]
    counts: Partitioned[Counter[str]]

    @entry
    def seen(self, word: str) -> int:
        parts: list[str] = self.names.get(word, word).split()  #!
        self.counts.add(word)
        return len(parts)
""",
    ),
    Rule(
        "maybe-unassigned",
        "A variable that may have no value where it is sent",
        "a column has a value in each row.",
        "Assign it before the if or the loop.",
        """
class Words:
    names: Partitioned[Map[str, str]]
    counts: Partitioned[Counter[str]]

    @entry
    def seen(self, word: str) -> None:
        name: str
        if self.names.contains(word):
            name = "known"
        self.counts.add(name)  #!
""",
    ),
    Rule(
        "multi-valued",
        "A variable with several values that is used as if it had one",
        "after a Global access it has one value for each instance.",
        "Gather them with Collection(..) and merge the list, as in return self.merge(Collection(scores)).",
        """
class Words:
    counts: Partial[Counter[str]]

    @entry
    def most(self) -> int:
        size: int = Global(self.counts).size()
        return size  #!
""",
    ),
    Rule(
        "collection",
        "Collection of what has one value",
        "only a variable that was assigned from a Global access has a value for each instance.",
        "Write Collection(name) of such a variable, or leave it out.",
        """
class Words:
    counts: Partial[Counter[str]]

    @entry
    def seen(self, word: str) -> int:
        n: int = self.counts.count(word)
        return sum(Collection(n))  #!
""",
    ),
)
