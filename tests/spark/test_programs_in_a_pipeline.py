"""Programs in a pipeline, without Spark: refusals, equal calls, and the effects of calls on others."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal import Pipeline
from epochal.connectors import console, generator
from epochal.declarations.entry import CALL_SCHEMA, ENTRIES
from epochal.errors import IncompatibleState
from epochal.operators.programs import stage_output
from epochal.operators.programs.counters import summed
from epochal.programs import Collection, Counter, Global, Map, Matrix, Partial, Partitioned, Vector, entry, program
from epochal.programs.state import OVERFLOWED
from tests.kit import feed_errors
from tests.kit.lives import Life, Step
from tests.kit.written import FED_WRONGLY
from tests.unit.test_entries import answers, call

CALLS = pa.schema([("word", pa.string()), ("n", pa.int64()), ("at", pa.int64())])


@program
class Words:
    """Two state elements, one after the other."""

    seen: Partitioned[Map[str, int]]
    lengths: Partitioned[Counter[int]]

    @entry
    def add(self, word: str, n: int) -> int:
        before: int = self.seen.get(word, 0)
        self.seen.put(word, before + 1)
        if n < 0:
            raise ValueError(f"{word} is negative")
        length: int = len(word)
        self.lengths.add(length, n)
        return before

    @entry
    def clear(self, word: str) -> None:
        self.seen.remove(word)


def pipeline(columns: str = "word n at", **feed: Any) -> Pipeline:
    made = Pipeline("words")
    words = made.program(Words)
    rows = made.read("rows", generator.source(dict.fromkeys(columns.split(), "id")))
    words.feed("add", rows, **{"order_by": "at", "keep": "at", **feed})
    words.results("add").write("out", console.sink())
    return made


def row(word: str | None, n: int | None, at: int) -> dict[str, Any]:
    return {"word": word, "n": n, "at": at}


def test_equal_calls_run_one_after_the_other() -> None:
    """At any parallelism, each of them reads the writes of the previous ones."""
    for parallelism in (1, 3):
        with Life(pipeline(), {"rows": CALLS}, parallelism=parallelism) as life:
            life.epoch(rows=[row("a", 1, 5)] * 4)
            life.epoch(Step("abort"), rows=[row("a", 1, 6)] * 3 + [row("bb", 2, 6)])
            life.finish()
            answers = sorted((each["at"], each["value"]) for each in life.all_of("out"))
            assert answers == [(5, 0), (5, 1), (5, 2), (5, 3), (6, 0), (6, 4), (6, 5), (6, 6)]
            assert {each["key"]: each["count"] for each in life.state("lengths")} == {1: 7, 2: 2}


def test_exception_of_a_call_is_its_answer_and_its_writes_stay() -> None:
    with Life(pipeline(), {"rows": CALLS}) as life:
        life.epoch(rows=[row("a", -1, 1), row("a", 1, 2), row(None, 1, 3), row("b", None, 4)])
        life.finish()
        answers = {each["at"]: (each["value"], each["error"]) for each in life.all_of("out")}
        assert answers == {
            1: (None, "ValueError: a is negative"),
            2: (1, None),
            3: (None, "TypeError: word is None, of type NoneType, and not str"),
            4: (None, "TypeError: n is None, of type NoneType, and not int"),
        }
        assert {each["key"]: each["value"] for each in life.state("seen")} == {"a": 2}


def test_removed_elements_have_no_row_and_removing_a_missing_one_changes_nothing() -> None:
    made = Pipeline("words")
    words = made.program(Words, name="w")
    words.feed("add", made.read("rows", generator.source(dict.fromkeys(CALLS.names, "id"))), order_by="at")
    words.feed("clear", made.read("removed", generator.source({"word": "id", "when": "id"})), order_by="when")
    cleared = pa.schema([("word", pa.string()), ("when", pa.int64())])
    with Life(made, {"rows": CALLS, "removed": cleared}) as life:
        life.epoch(rows=[row("a", 1, 1), row("b", 1, 5)])
        life.epoch(removed=[{"word": "a", "when": 7}, {"word": "never", "when": 7}])
        life.finish()
        assert [each["key"] for each in life.state("w-seen")] == ["b"]
        assert [manifest.counts.state_rows for manifest in life.manifests][1:] == [1]


@pytest.mark.slow
def test_docs_list_the_refused_ways_to_feed_and_serve_a_program(spark: SparkSession) -> None:
    """Each line of the page is refused with the message that the page shows."""
    answered = feed_errors.refusals(spark)
    assert [text for text, message in answered.items() if message is None] == []
    assert FED_WRONGLY.read() == feed_errors.page(answered), "python -m tests.kit.written"


@program
class Totals:
    """State that fan-outs write."""

    totals: Partitioned[Map[str, int]]

    @entry
    def vote(self, word: str, n: int) -> None:
        for letter in word:
            self.totals.add(letter, n)

    @entry
    def counted(self, word: str) -> int:
        return self.totals.get(word, 0)


def test_combined_additions_equal_sequential_calls() -> None:
    """Also for sums that exceed 64 bits within an epoch or did so before it."""
    entries, plain = ("vote", "counted"), Totals()
    epochs = [
        [row("aab", 3, 1), row("ba", -5, 2), row("", 1, 3), row("\u00e9\U0001f600z", 7, 4)],
        [row("a", 2**62, 5), row("az", 1, 6), row("c", 2**62, 7)],
        [row("c", 2**62, 8), row("c", -(2**62), 9), row("b", 2, 10)],
        [row("cb", -1, 11), row("d", -(2**63), 12)],
    ]
    with Life(votes(*entries, of=Totals), dict.fromkeys(entries, CALLS), parallelism=2) as life:
        for calls in epochs:
            for call in calls:
                plain.vote(call["word"], call["n"])
            life.epoch(vote=calls)
            expected = [(key, None if value is OVERFLOWED else value) for (key,), value in plain.totals.rows()]
            assert sorted((each["key"], each["value"]) for each in life.state("totals")) == expected
        life.epoch(vote=[row("b", 1, 20), row("b", 4, 22)], counted=[row("b", 0, 21), row("c", 0, 23)])
        life.finish()
        found = {each["at"]: (each["value"], each["error"]) for each in life.all_of("counted-answers")}
        assert found[21] == (plain.counted("b") + 1, None)
        assert found[23][1].startswith("OverflowError: ")


@program
class Rising:
    """Counts that only rise, unless ``take`` is fed."""

    letters: Partitioned[Counter[str]]
    sums: Partitioned[Map[str, int]]

    @entry
    def vote(self, word: str) -> None:
        for letter in word:
            self.letters.add(letter)
            if letter != "a":
                self.letters.add(letter, amount=2)

    @entry
    def leave(self, word: str) -> None:
        for letter in word:
            self.sums.add(letter, 4611686018427387904)

    @entry
    def take(self, word: str, n: int) -> None:
        for letter in word:
            self.letters.add(letter, n)


@pytest.mark.parametrize("entries", [("vote", "leave"), ("vote", "leave", "take")])
def test_non_negative_additions_are_sent_as_sums(entries: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """One row for each key; separate rows if calls may subtract, and if a sum would exceed 64 bits."""
    plain, rows_of_sums = Rising(), set()

    def watched(key: pa.Array, amount: pa.Array) -> Any:
        sums = summed(key, amount)
        rows_of_sums.add((amount[0].as_py(), len(key), None if sums is None else len(sums[0])))
        return sums

    monkeypatch.setattr(stage_output, "summed", watched)
    epochs = [["aab", "ba", "\u00e9z", ""], ["", "abcabc", "aaa"], ["c"]]
    with Life(votes(*entries, of=Rising), dict.fromkeys(entries, CALLS), parallelism=1) as life:
        for words in epochs:
            calls = [row(word, -1, number) for number, word in enumerate(words)]
            for word in words:
                plain.vote(word)
                plain.leave(word)
            life.epoch(vote=calls, leave=calls)
            for name, column in (("letters", "count"), ("sums", "value")):
                rows = getattr(plain, name).rows()
                expected = [(key, None if value is OVERFLOWED else value) for (key,), value in rows]
                assert sorted((each["key"], each[column]) for each in life.state(name)) == expected
        life.finish()
    assert (4611686018427387904, 7, None) in rows_of_sums
    assert ((1, 11, 4) in rows_of_sums) == ("take" not in entries)


@program
class Votes:
    """Partial state that is only added to, and partial state whose instances are equal."""

    cast: Partial[Counter[str]]
    limits: Partial[Map[str, int]]

    @entry
    def vote(self, word: str, n: int) -> None:
        self.cast.add(word, n)

    @entry
    def limit(self, word: str, n: int) -> None:
        Global(self.limits).put(word, n)

    @entry
    def counted(self, word: str) -> int:
        votes: int = Global(self.cast).count(word)
        return sum(Collection(votes))

    @entry
    def least(self, word: str) -> int:
        limit: int | None = Global(self.limits).get(word)
        every = Collection(limit)
        found = [each for each in every if each is not None]
        if not found:
            raise KeyError(word)
        return min(found)


@program
class Latest:
    """Partial state whose instances cannot be merged."""

    last: Partial[Map[str, int]]

    @entry
    def vote(self, word: str, n: int) -> None:
        self.last.put(word, n)


def votes(*entries: str, of: type = Votes) -> Pipeline:
    made = Pipeline("votes")
    running = made.program(of)
    for name in entries:
        rows = made.read(name, generator.source(dict.fromkeys(CALLS.names, "id")))
        running.feed(name, rows, order_by="at", keep="at")
    for name in entries:
        running.results(name).write(f"{name}-answers", console.sink())
    return made


def test_instances_are_merged_if_the_program_defines_how() -> None:
    """Sums are added. Of instances that are equal, one suffices."""
    entries = ("vote", "limit", "counted", "least")
    with Life(votes(*entries), dict.fromkeys(entries, CALLS), parallelism=3) as life:
        life.epoch(vote=[row("ab"[n % 2], n, n) for n in range(9)], limit=[row("a", 7, 20)])
        assert len({each["_group"] for each in life.state("cast")}) == len(life.state("limits")) == 3
        life.epoch(Step("die", 1), counted=[row("a", 0, 30)], least=[row("a", 0, 31), row("b", 0, 32)])
        life.epoch(Step("restart", 4), counted=[row("b", 0, 40)], least=[row("a", 0, 41)])
        life.finish()
        assert [each["value"] for each in life.all_of("counted-answers")] == [20, 16]
        found = {each["at"]: each["value"] or each["error"] for each in life.all_of("least-answers")}
        assert found == {31: 7, 32: "KeyError: 'b'", 41: 7}


@program
class Positions:
    """Partial state that stores no elements of zero."""

    held: Partial[Matrix[int]]
    open: Partial[Vector[float]]

    @entry
    def vote(self, word: str, n: int) -> None:
        self.held.add(n // 10, len(word), n % 10 - 5)
        amount: float = n % 10 - 5.0
        self.open.add(n // 10, amount)

    @entry
    def counted(self, word: str) -> int:
        held: Vector[int] = Global(self.held).row(1)
        every = Collection(held)
        return sum([len(each) for each in every])

    @entry
    def least(self, word: str) -> int:
        amounts: Vector[float] = Global(self.open).value()
        every = Collection(amounts)
        return sum([len(each) for each in every])


def test_elements_that_merge_to_zero_are_removed() -> None:
    """As in the class itself, from reads and from the table."""
    entries = ("vote", "counted", "least")
    plain = Positions()
    with Life(votes(*entries, of=Positions), dict.fromkeys(entries, CALLS), parallelism=4) as life:
        calls = [row("ab"[: 1 + n % 2], 10 + n, n) for n in (1, 9, 4, 6, 7)] + [row("a", 8, 90), row("c", 2, 91)]
        for call in calls:
            plain.vote(call["word"], call["n"])
        life.epoch(vote=calls)
        assert len({each["_group"] for each in life.state("held") if each["row"] == 1}) > 1
        life.epoch(Step("restart", 1), counted=[row("a", 0, 100)], least=[row("a", 0, 101)])
        life.finish()
        assert [each["value"] for each in life.all_of("counted-answers")] == [plain.counted("")] == [1]
        assert [each["value"] for each in life.all_of("least-answers")] == [plain.least("")] == [1]
        assert [(each["row"], each["column"], each["value"]) for each in life.state("held")] == [(1, 2, 2)]
        assert [(each["index"], each["value"]) for each in life.state("open")] == [(1, 2.0)]
        assert [key for key, _ in plain.held.rows()] == [(1, 2)]


def test_unmergeable_instances_prevent_a_smaller_parallelism() -> None:
    with Life(votes("vote", of=Latest), {"vote": CALLS}, parallelism=2) as life:
        life.epoch(vote=[row("a", 9, 50)])
        life.epoch(Step("restart", 3), vote=[row("a", 9, 51)])
        with pytest.raises(IncompatibleState, match=r"'last' is partial state.* write it only through Global"):
            life.restart(2)


@program
class Raised:
    """As ``Votes``, except that any instance writes limits, and never all of them."""

    cast: Partial[Counter[str]]
    limits: Partial[Map[str, int]]

    @entry
    def vote(self, word: str, n: int) -> None:
        self.cast.add(word, n)

    @entry
    def limit(self, word: str, n: int) -> None:
        self.limits.add(word, n)


def test_upgrade_cannot_confuse_equal_instances_with_parts_of_a_sum() -> None:
    entries = ("vote", "limit")
    for before, after, message in (
        (Votes, Raised, r"'limits': each of its instances holds the whole state, and the instances would be added up"),
        (
            Raised,
            Votes,
            r"'limits': each of its instances holds a part of a sum, which would be taken for the whole state",
        ),
    ):
        with Life(votes(*entries, of=before), dict.fromkeys(entries, CALLS), parallelism=2) as life:
            life.epoch(vote=[row("a", 1, 1)], limit=[row("a", 7, 2)])
            with pytest.raises(IncompatibleState, match=message):
                life.upgrade(votes(*entries, of=after))


def test_global_access_returns_the_exception_of_an_instance() -> None:
    """Only one instance of the counts has overflowed."""
    entries = ("vote", "counted")
    with Life(votes(*entries), dict.fromkeys(entries, CALLS), parallelism=3) as life:
        life.epoch(vote=[row("a", 2**62, 1), row("a", 2**62, 1), row("b", 1, 2), row("b", 1, 3), row("b", 1, 4)])
        life.epoch(counted=[row("a", 0, 5), row("b", 0, 6)])
        life.finish()
        found = {each["at"]: each["value"] or each["error"] for each in life.all_of("counted-answers")}
        assert found[6] == 3
        assert found[5].startswith("OverflowError: ")


def test_served_entries_are_answered_despite_failures() -> None:
    """The exception of a call is its answer."""
    made = Pipeline("words")
    words = made.program(Words)
    words.serve()
    with Life(made, {ENTRIES: CALL_SCHEMA}) as life:
        life.epoch(
            Step("die", 3), **{ENTRIES: [call("add", "a", 1, word="x", n=1), call("add", "b", 2, word="x", n=1)]}
        )
        life.epoch(Step("abort"), **{ENTRIES: [call("add", "c", 3, word="x", n=-1), call("clear", "d", 4, word="x")]})
        life.finish()
        assert answers(life, "add_answers") == {
            "a": (True, "0", None),
            "b": (True, "1", None),
            "c": (True, None, "ValueError: x is negative"),
        }
        assert answers(life, "clear_answers") == {"d": (True, "null", None)}
        assert life.state("seen") == []
