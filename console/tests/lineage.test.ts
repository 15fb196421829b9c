import assert from "node:assert/strict";
import { test } from "node:test";
import type { LineageEdge, LineageNode } from "../src/api/types";
import { lanesOf } from "../src/model/lanes";
import { drawingOf, keyOf, matches, refreshed, runWith, withOpened, type Tree } from "../src/model/lineage";
import { diffLines, hunks } from "../src/model/textdiff";

function node(branch: string, epoch: number, more: Partial<LineageNode> = {}): LineageNode {
  return { branch, epoch, first: epoch, epochs: 1, application: branch, savepoints: [], tags: [], changes: [], message: null, state: "committed", pinned: false, filename: "a.py", artifact: "ab", version: 1, ...more } as unknown as LineageNode;
}

function edge(from: string, to: string): LineageEdge {
  const key = (text: string) => ({ branch: text.split("/")[0]!, epoch: Number(text.split("/")[1]) });
  return { from: key(from), to: key(to), kind: "epoch", label: null, slices: null } as LineageEdge;
}

function tree(nodes: LineageNode[], edges: LineageEdge[], more: Partial<Tree> = {}): Tree {
  return { nodes, edges, heads: {}, next_cursor: null, ...more };
}

test("the trunk is leftmost, also if another branch has newer snapshots", () => {
  const rows = lanesOf(
    [
      { key: "b/4", parents: ["b/3"], branch: "b" },
      { key: "b/3", parents: ["a/1"], branch: "b" },
      { key: "a/2", parents: ["a/1"], branch: "a" },
      { key: "a/1", parents: [], branch: "a" },
    ],
    "a/2",
  );
  assert.deepEqual(rows.map((row) => row.lane), [1, 1, 0, 0]);
  assert.deepEqual(rows[0]!.passing, []);
  assert.deepEqual(rows[2]!.passing, [1]);
  assert.deepEqual(rows[3]!.joining, [0, 1]);
  assert.deepEqual(rows[3]!.from, ["a/2", "b/3"]);
});

test("a branch keeps its lane where a fork of it is further left", () => {
  const rows = lanesOf([
    { key: "c/3", parents: ["b/2"], branch: "c" },
    { key: "b/3", parents: ["b/2"], branch: "b" },
    { key: "b/2", parents: ["b/1"], branch: "b" },
    { key: "b/1", parents: [], branch: "b" },
  ]);
  assert.deepEqual(rows.map((row) => row.lane), [0, 1, 1, 1]);
});

test("a branch that a rollback left is marked, and its ancestors are not", () => {
  const nodes = [node("main2", 4, { application: "a" }), node("main1", 3, { application: "a" }), node("main1", 2, { application: "a" })];
  const drawing = drawingOf(tree(nodes, [edge("main1/2", "main2/4"), edge("main1/2", "main1/3")], { heads: { a: { branch: "main2", epoch: 4 } } }), "a");
  assert.deepEqual(drawing.rows.map((row) => row.lane), [0, 1, 0]);
  assert.deepEqual(drawing.strands.map((strand) => strand.application), ["a"]);
  assert.deepEqual(drawing.tips, [true, true, false]);
  assert.deepEqual(nodes.map((each) => drawing.line(keyOf(each)).left), [false, true, false]);
});

test("the heads of forks are marked, also where a fork has no snapshot of its own", () => {
  const nodes = [node("fork", 4), node("main", 3), node("main", 2)];
  const key = (branch: string, epoch: number) => ({ branch, epoch });
  const heads = { main: key("main", 3), fork: key("fork", 4), unstarted: key("main", 3), empty: null };
  const drawing = drawingOf(tree(nodes, [edge("main/2", "fork/4"), edge("main/2", "main/3")], { heads }), "main");
  assert.deepEqual(nodes.map((each) => drawing.heads.get(keyOf(each))), [["fork"], ["main", "unstarted"], undefined]);
});

test("until the first epoch after a rollback, the head is on the branch that was left", () => {
  const nodes = [node("main", 4, { application: "a" }), node("main", 3, { application: "a" }), node("main", 2, { application: "a" })];
  const edges = [edge("main/3", "main/4"), edge("main/2", "main/3")];
  const left = (given: LineageNode[], epoch: number) => {
    const drawing = drawingOf(tree(given, edges, { heads: { a: { branch: "main", epoch } } }), "a");
    return given.map((each) => drawing.line(keyOf(each)).left);
  };
  assert.deepEqual(left(nodes, 2), [true, true, false]);
  assert.deepEqual(left([{ ...nodes[0]!, state: "prepared" } as LineageNode, ...nodes.slice(1)], 3), [false, false, false]);
});

test("an opened run keeps what is above and below of the opened epochs folded", () => {
  const run = node("a", 9, { first: 2, epochs: 8 });
  const whole = tree([node("a", 10), run, node("a", 1)], [edge("a/9", "a/10"), edge("a/1", "a/9")]);
  const opened = { nodes: [node("a", 6), node("a", 5)], edges: [edge("a/5", "a/6"), edge("a/4", "a/5")] };
  const found = withOpened(whole, [opened]);
  assert.deepEqual(found.nodes.map((each) => [each.first, each.epoch]), [[10, 10], [7, 9], [6, 6], [5, 5], [2, 4], [1, 1]]);
  assert.deepEqual(found.nodes.map((each) => each.partial ?? false), [false, true, false, false, true, false]);
  const origins = new Map(found.edges.map((each) => [keyOf(each.to), keyOf(each.from)]));
  assert.deepEqual([9, 6, 5, 4].map((epoch) => origins.get(`a/${epoch}`)), ["a/6", "a/5", "a/4", "a/1"]);
  assert.equal(drawingOf(found, "a").width, 1);
});

test("an opened run whose oldest epochs are shown has no rest", () => {
  const whole = tree([node("a", 3, { first: 2, epochs: 2 }), node("a", 1)], [edge("a/1", "a/3")]);
  const found = withOpened(whole, [{ nodes: [node("a", 3), node("a", 2)], edges: [edge("a/2", "a/3"), edge("a/1", "a/2")] }]);
  assert.deepEqual(found.nodes.map((each) => each.epoch), [3, 2, 1]);
});

test("older pages stay when the first one is read again, unless they do not follow it", () => {
  const page = (...epochs: number[]) => tree(epochs.map((each) => node("a", each)), [], { next_cursor: "c" });
  const before = { ...page(4, 3, 2, 1), next_cursor: null };
  assert.deepEqual(refreshed(before, page(5, 4, 3)).nodes.map((each) => each.epoch), [5, 4, 3, 2, 1]);
  assert.equal(refreshed(before, page(5, 4, 3)).next_cursor, null);
  assert.deepEqual(refreshed(before, page(9, 8)).nodes.map((each) => each.epoch), [9, 8]);
});

test("snapshots are found by epoch within a run, tag, and kind", () => {
  const run = node("a", 90, { first: 10, epochs: 81 });
  assert.ok(matches(run, "epoch", "42") && !matches(run, "epoch", "91"));
  assert.ok(matches(node("a", 1, { tags: ["summer"] }), undefined, "Summer"));
  assert.ok(matches(node("a", 1), "rollback", "roll"));
  assert.equal(runWith(tree([run], []), "a", 42), run);
});

function applied(before: string, after: string): [string, string] {
  const found = diffLines(before, after);
  const text = (kinds: string[]) => found.filter((line) => kinds.includes(line.kind)).map((line) => `${line.text}\n`).join("");
  return [text(["same", "removed"]), text(["same", "added"])];
}

test("a difference contains both texts, and no more changes than needed", () => {
  for (const [one, other, changes] of [
    ["a\nb\nc\n", "a\nx\nc\n", 2],
    ["a\nb\nc\nd\ne\n", "b\nc\nx\ne\nf\n", 4],
    ["", "a\n", 1],
    ["a\na\nb\n", "a\nb\nb\na\n", 3],
    ["same\n", "same\n", 0],
  ] as const) {
    assert.deepEqual(applied(one, other), [one, other]);
    assert.equal(diffLines(one, other).filter((line) => line.kind !== "same").length, changes);
  }
});

test("line numbers are those of each text, and distant lines are left out", () => {
  const before = Array.from({ length: 40 }, (_, index) => `line ${index}`);
  const after = [...before.slice(0, 20), "new", ...before.slice(20)];
  const found = hunks(diffLines(before.join("\n"), after.join("\n")), 2);
  assert.deepEqual(found.map((line) => line && [line.before, line.after]), [null, [19, 19], [20, 20], [null, 21], [21, 22], [22, 23], null]);
});
