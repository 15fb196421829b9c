import assert from "node:assert/strict";
import { test } from "node:test";
import type { GraphNode, Lineage, Preflight } from "../src/api/types";
import { amountOf } from "../src/model/progress";
import { holders, stored } from "../src/model/retention";
import { consents, graphDifferences, parametersOf, tally } from "../src/model/versions";

function node(name: string, type: string, description: Record<string, unknown> = {}, columns: Record<string, string> | null = null): GraphNode {
  return { id: 0, name, type, inputs: [], description, columns, stream: null } as unknown as GraphNode;
}

test("parts of a graph that differ are named with their members", () => {
  const before = [node("rows", "source", { rate: 5 }), node("totals", "aggregate", { columns: { n: "count(*)" } }, { n: "bigint" }), node("old", "sink")];
  const after = [node("rows", "source", { rate: 5 }), node("totals", "aggregate", { columns: { n: "sum(n)" } }, { n: "int" }), node("new", "sink")];
  assert.deepEqual(graphDifferences(before, after), [
    { name: "totals", type: "aggregate", what: "changed", members: [{ name: "columns.n", before: "count(*)", after: "sum(n)" }, { name: "column n", before: "bigint", after: "int" }] },
    { name: "new", type: "sink", what: "added", members: [] },
    { name: "old", type: "sink", what: "removed", members: [] },
  ]);
});

test("parameters are a JSON object, or those of the latest version", () => {
  assert.equal(parametersOf(null), null);
  assert.deepEqual(parametersOf("  "), {});
  assert.throws(() => parametersOf("[1]"), /not a JSON object/);
  assert.throws(() => parametersOf("{"), /not valid JSON/);
});

test("differences that must be accepted have the names of the API", () => {
  const table = (more: object) => ({ table: "t.state", operator: "t", verdict: "same", added: [], dropped: [], changed: [], partial: [], ...more });
  const report = {
    comparison: {
      tables: [
        table({ verdict: "changed", changed: [{ column: "sum", what: "argument" }, { column: null, what: "key" }], partial: ["most"] }),
        table({ verdict: "refused", changed: [{ column: "low", what: "function", accepted: false }] }),
        table({ verdict: "evolved", dropped: ["note"] }),
        table({ table: "u", operator: "u", verdict: "dropped" }),
      ],
    },
  } as unknown as Preflight;
  assert.deepEqual(consents(report).map((each) => `${each.kind} ${each.name}`), ["changed t.sum", "changed t", "partial t.most", "dropped t.state.note", "dropped u"]);
  assert.deepEqual(tally(report), { kept: 2, added: 0, dropped: 1, refused: 1 });
});

test("a fork holds the snapshot at which it begins, and a tag holds none of another application", () => {
  const at = (application: string, branch: string, epoch: number, more: object = {}) => ({ application, branch, epoch, first: epoch, epochs: 1, collected: false, state: "committed", ...more });
  const lineage = {
    nodes: [at("a", "a-1", 9), at("a", "a-1", 5, { first: 2, epochs: 4 }), at("a", "a-1", 1, { collected: true }), at("b", "b-1", 6)],
    edges: [{ from: { branch: "a-1", epoch: 5 }, to: { branch: "b-1", epoch: 6 }, kind: "fork", label: { by: "ada", at: "2030-01-01T00:00:00Z", message: "why" } }],
  } as unknown as Lineage;
  const nothing = { pins: [], savepoints: [], tags: [], operations: [], transactions: [] };
  const found = holders("a", { ...nothing, lineage, head: 9 });
  assert.deepEqual(found.map((each) => [each.kind, each.epoch, each.name]), [["latest", 9, null], ["fork", 5, "b"]]);
  assert.deepEqual(holders("b", { ...nothing, lineage, head: null }), []);
  const kept = stored("a", lineage.nodes);
  assert.deepEqual([kept.epochs, kept.oldest?.first], [5, 2]);
});

test("progress with a total is a share", () => {
  assert.deepEqual(amountOf("1024 of 4096 bytes"), { done: 1024, all: 4096, text: "25 %, 1.0 KiB of 4.0 KiB" });
  assert.equal(amountOf("3 of 4 files deleted")?.text, "75 %, 3 of 4 files deleted");
  assert.equal(amountOf("listing the store"), null);
  assert.equal(amountOf("0 of 0 files"), null);
});
