import assert from "node:assert/strict";
import { test } from "node:test";
import { EventParser } from "../src/api/sse";
import { resource, withQuery } from "../src/api/client";
import { epochal, literal, quoted } from "../src/model/commands";
import { rateOf, withEpoch } from "../src/model/epochs";
import { age, bytes, clipped, count, duration, rate } from "../src/model/format";
import { keyText, keyValues } from "../src/model/keys";
import { lanesOf, widthOf } from "../src/model/lanes";
import type { Epoch } from "../src/api/types";

test("numbers have units", () => {
  assert.equal(count(1, "row"), "1 row");
  assert.equal(count(2300, "row"), "2,300 rows");
  assert.equal(rate(3.25), "3.3 rows/s");
  assert.equal(rate(1234), "1,234 rows/s");
  assert.equal(bytes(1536), "1.5 KiB");
  assert.equal(duration(950), "950 ms");
  assert.equal(duration(90_000), "90 s");
  assert.equal(duration(7_200_000), "2 h");
});

test("an age is whole seconds, and a server's clock that is ahead is now", () => {
  const now = Date.parse("2026-01-01T00:00:10Z");
  assert.equal(age("2026-01-01T00:00:07.400Z", now), "2 s ago");
  assert.equal(age("2026-01-01T00:00:20Z", now), "now");
});

test("clipping does not split a character of two code units", () => {
  assert.equal(clipped("😀😀😀", 2), "😀…");
});

test("keys with separators, slashes and null keep their values", () => {
  const values = ["a,b/c%2F..", null, "<script>", ""];
  assert.deepEqual(keyValues(keyText(values)), values);
  assert.equal(keyText(["JFK", "LAX"]), "JFK,LAX");
});

test("commands quote what a shell would interpret", () => {
  assert.equal(quoted("it's $HOME"), `'it'\\''s $HOME'`);
  assert.equal(epochal("default", "get", "orders", "spent", "a b; rm"), "epochal get orders spent 'a b; rm'");
  assert.equal(epochal("pricing", "ps"), "epochal --project pricing ps");
  assert.equal(literal({ a: [null, true, 'x"y'] }), `{"a": [None, True, "x\\"y"]}`);
});

test("resources of a project other than default have its prefix, and names are encoded", () => {
  assert.equal(resource("default", "applications", "a/b"), "/v1/applications/a%2Fb");
  assert.equal(resource("pricing", "events"), "/v1/projects/pricing/events");
  assert.equal(withQuery("/v1/x", { a: null, b: "", c: "1 2" }), "/v1/x?c=1+2");
});

test("the event parser joins chunks, and ignores heartbeats", () => {
  const parser = new EventParser();
  assert.deepEqual(parser.push('retry: 1000\n\n: still here\n\nid: a/1\nevent: epoch\ndata: {"x"'), []);
  assert.deepEqual(parser.push(":1}\n\n"), [{ id: "a/1", kind: "epoch", data: '{"x":1}' }]);
});

test("a fork has a lane of its own, which ends at its parent", () => {
  const rows = lanesOf([
    { key: "a/3", parents: ["a/2"] },
    { key: "b/3", parents: ["a/1"] },
    { key: "a/2", parents: ["a/1"] },
    { key: "a/1", parents: [] },
  ]);
  assert.deepEqual(rows.map((row) => row.lane), [0, 1, 0, 0]);
  assert.deepEqual(rows[2]!.passing, [1]);
  assert.deepEqual(rows[3]!.joining, [0, 1]);
  assert.equal(rows[3]!.continues, false);
  assert.equal(widthOf(rows), 2);
});

test("a lane is used again after its branch has ended", () => {
  const rows = lanesOf([
    { key: "c/2", parents: ["a/2"] },
    { key: "a/2", parents: ["a/1"] },
    { key: "b/2", parents: ["a/1"] },
    { key: "a/1", parents: [] },
  ]);
  assert.equal(widthOf(rows), 2);
});

function epoch(number: number, started: number, prepared: number | null, rows: number): Epoch {
  const time = (seconds: number) => new Date(seconds * 1000).toISOString();
  return { branch: "a", epoch: number, state: prepared ? "committed" : "started", started_at: time(started), prepared_at: prepared && time(prepared), rows_in: rows } as Epoch;
}

test("the rate counts prepared epochs over the time that they took", () => {
  assert.equal(rateOf([epoch(3, 20, null, 0), epoch(2, 10, 20, 600), epoch(1, 0, 10, 400)]), 50);
  assert.equal(rateOf([]), null);
});

test("an event replaces the record of its epoch", () => {
  const list = withEpoch([epoch(2, 10, null, 0), epoch(1, 0, 10, 4)], epoch(2, 10, 20, 6));
  assert.deepEqual(list.map((each) => [each.epoch, each.rows_in]), [[2, 6], [1, 4]]);
});
