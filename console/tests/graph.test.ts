import assert from "node:assert/strict";
import { test } from "node:test";
import { addressOf, figuresOf, hasRate, nodeAt, rateOfEdge, shareOf, slowestOf, type Measured } from "../src/model/graph";
import type { Epoch, Graph, GraphNode, Load, StateTable } from "../src/api/types";

const NOW = Date.parse("2026-01-01T00:01:00Z");
const node = (id: number, type: string, name: string, inputs: number[] = []) => ({ id, type, name, inputs, description: type === "sink" ? { kind: "files" } : {} }) as unknown as GraphNode;
const [ORDERS, WHERE, TOTALS, OUT, JOIN] = [node(0, "source", "orders"), node(1, "transform", "where", [0]), node(2, "aggregate", "totals", [1]), node(3, "sink", "out", [2]), node(4, "join", "both", [0, 2])] as const;
const GRAPH = { name: "shop", nodes: [ORDERS, WHERE, TOTALS, OUT, JOIN], sinks: {} } as unknown as Graph;
const source = { records: 0, files: null, seconds: 0, reachable: true, rows: 600 };
const LOAD = {
  seconds: 60,
  operators: { totals: { rows: 120, busy_seconds: 24, subtasks: 2 }, both: { rows: 60, busy_seconds: 1.2, subtasks: 2 } },
  sources: { orders: source },
  sinks: { out: { rows: 30, blocked_since: null } },
  tables: { totals: { rows: 900, bytes: 2048 } },
  store_away_since: null,
} as unknown as Load;
const TABLES = [{ table: "totals", operator: "totals", rows: 500 }] as unknown as StateTable[];
const measured = (load: Load | undefined, epochs: Epoch[] = []): Measured => ({ graph: GRAPH, load, tables: TABLES, epochs });
const figures = (load: Load | undefined, of: GraphNode) => figuresOf(measured(load), of, slowestOf(load), NOW);

test("nodes have their rate, lag, share of time and state", () => {
  assert.deepEqual(figures(LOAD, ORDERS), { lines: ["10 rows/s", "no lag"], waits: "", slowest: false });
  assert.deepEqual(figures(LOAD, TOTALS), { lines: ["20 % busy", "500 rows, 2.0 KiB files"], waits: "", slowest: true });
  assert.deepEqual(figures(LOAD, OUT).lines, ["0.5 rows/s", "files"]);
  assert.deepEqual(figures(LOAD, WHERE).lines, ["", ""]);
});

test("unknown figures are no text", () => {
  assert.deepEqual(figures(undefined, ORDERS).lines, ["", ""]);
  assert.deepEqual(figures(undefined, TOTALS).lines, ["", "500 rows"]);
  const first = { ...LOAD, sources: { orders: { ...source, rows: null } }, sinks: {}, operators: {} } as unknown as Load;
  assert.equal(shareOf(first, "totals"), null);
  assert.deepEqual(figures(first, TOTALS).lines[0], "");
  assert.deepEqual(figures(first, ORDERS).lines, ["", "no lag"]);
  assert.equal(rateOfEdge(first, WHERE, TOTALS), null);
});

test("a source that has read everything at a time reports what it is behind", () => {
  const behind = { ...LOAD, sources: { orders: { ...source, records: 12_345, seconds: 90 } } } as unknown as Load;
  assert.equal(figures(behind, ORDERS).lines[1], "lag 90 s, 12.3K rows");
  const files = { ...LOAD, sources: { orders: { ...source, records: null, files: 1, seconds: null } } } as unknown as Load;
  assert.equal(figures(files, ORDERS).lines[1], "lag 1 file");
});

test("edges have the rate of one end that knows it", () => {
  assert.equal(rateOfEdge(LOAD, ORDERS, WHERE), 10);
  assert.equal(rateOfEdge(LOAD, WHERE, TOTALS), 2);
  assert.equal(rateOfEdge(LOAD, TOTALS, OUT), 0.5);
  assert.equal(rateOfEdge(LOAD, TOTALS, JOIN), null, "the rows of an operator with two inputs are those of both");
  assert.equal(rateOfEdge(LOAD, ORDERS, JOIN), 10);
  assert.equal(hasRate(TOTALS, JOIN), false);
});

test("what epochs wait for is at its node", () => {
  const since = "2026-01-01T00:00:18Z";
  assert.equal(figures({ ...LOAD, sinks: { out: { rows: 30, blocked_since: since } } } as unknown as Load, OUT).waits, "commits fail for 42 s");
  assert.equal(figures({ ...LOAD, store_away_since: since } as unknown as Load, TOTALS).waits, "store away for 42 s");
  assert.equal(figures({ ...LOAD, sources: { orders: { ...source, reachable: false } } } as unknown as Load, ORDERS).waits, "does not answer");
});

test("one operator alone is not the slowest", () => {
  assert.equal(slowestOf({ ...LOAD, operators: { totals: LOAD.operators.totals } } as unknown as Load), null);
});

test("a watermark is that of the newest epoch that has one", () => {
  const epochs = [{ watermarks: {} }, { watermarks: { at: { fire: null, idle: false, ended: true } } }] as unknown as Epoch[];
  assert.equal(figuresOf(measured(LOAD, epochs), node(5, "watermark", "at", [0]), null, NOW).lines[0], "all input has ended");
});

test("addresses name a node, or number it if its name is not unique", () => {
  const twice = { ...GRAPH, nodes: [...GRAPH.nodes, node(5, "transform", "where", [3])] } as unknown as Graph;
  for (const each of twice.nodes) assert.equal(nodeAt(twice, addressOf(twice, each)), each);
  assert.equal(addressOf(twice, TOTALS), "totals");
  assert.equal(nodeAt(twice, "none"), undefined);
  assert.equal(nodeAt(twice, null), undefined);
});
