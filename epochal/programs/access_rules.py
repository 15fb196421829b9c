"""The rules for accesses to state, and for variables that pass from one task element to another."""

from __future__ import annotations

from epochal.programs.rule import Rule

ACCESS_RULES = (
    Rule(
        "state-as-value",
        "State that is passed on or assigned to a variable",
        "the translation must see each access in the source code.",
        "Call a method directly: self.counts.add(..), or Global(self.counts).value().",
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
        "Use a for loop, or read the state into a variable first.",
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
        "the exception handler would have to move with the call to the instance of the state.",
        "Keep only the code that can fail in the try block, and access the state after it.",
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
        "State in a method that is not an entry",
        "a method runs within one task element, which cannot move to another instance of the state.",
        "Access state in the entry, and pass the values to the method.",
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
        "only the methods of the state classes can read or write state.",
        "Use a method that docs/reference/programs.md lists.",
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
        "the elements are in many partitions, and the access does not identify one.",
        "Use a method with a key, or declare the state Partial and merge the values of its instances.",
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
        "the key is required first, to find the partition of the access.",
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
        "Access by a key other than the partitioning key",
        "in a matrix that is partitioned by row, a column is in many partitions, and vice versa.",
        "Declare it PartitionedByColumn[Matrix] or Partitioned[Matrix], use one kind of access, or add a second "
        "matrix.",
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
        "its instances have different keys, so that an access needs only one of them.",
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
        "A statement that accesses two state elements, or one state element by two keys",
        "a task element accesses one state element by one key, and statements cannot be split.",
        "Assign the first value to a variable with a type, and use the variable in the next statement.",
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
        "each call visits a state element once. Between two visits other calls could run, unlike in a sequential run: "
        "two transfers that check one account and write two could both pass a check that only one of them may pass.",
        "Store everything that one call checks and changes under one key (a common owner of both accounts). Or use two "
        "calls, one that reserves under a key of the transfer, and one that settles. Or, without a check, write "
        "everything in one loop at the end: for account, change in ((source, -amount), (target, amount)): "
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
        "the calls of an epoch visit state elements in one order, which must be the same for all entries. Otherwise a "
        "later call could overtake an earlier one.",
        "Access them in the same order in all entries, or combine them in one state element.",
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
        "A loop whose iterations access different partitions",
        "each iteration would move to another partition and back, and other calls could run in between.",
        "In the loop, only write to one partitioned state element and do not use results. Or use partial state, which "
        "a "
        "loop can read and write in one instance.",
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
        "its writes are sent to many partitions, and the call does not wait for them.",
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
        "it is sent as a column, which requires a type.",
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
        "A mutable variable, or one that is not a value, that is used in another task element",
        "a copy is sent, so that later changes would not be shared.",
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
        "A variable that can be unassigned where it is sent",
        "a column requires a value in each row.",
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
        "A variable with several values that is used as a single value",
        "after a Global access it has one value per instance.",
        "Use Collection(..) to get the list, and merge it, as in return self.merge(Collection(scores)).",
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
        "Collection of a single value",
        "only a variable that was assigned from a Global access has one value per instance.",
        "Use Collection(name) for such a variable only.",
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
