"""What is refused of where state is accessed, and of what goes from one task element to another."""

from __future__ import annotations

from epochal.programs.rule import Rule

ACCESS_RULES = (
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
