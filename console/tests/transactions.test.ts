import assert from "node:assert/strict";
import { test } from "node:test";
import type { Transaction } from "../src/api/types";
import { bySink } from "../src/model/transactions";

function transaction(sink: string, epoch: number, more: Partial<Transaction> = {}): Transaction {
  return { branch: "b", sink, epoch, rows: 1, prepared_at: null, waiting_since: null, error: null, driver: true, ...more };
}

test("transactions are grouped by sink, in the order of their epochs, blocked sinks first", () => {
  const blocked = { error: "no connection", waiting_since: "2026-01-01T00:00:00Z" };
  const queues = bySink([transaction("a", 7), transaction("z", 7, blocked), transaction("z", 6, blocked)]);
  assert.deepEqual(
    queues.map((each) => [each.sink, each.state, each.error, each.next.epoch, each.behind.map((later) => later.epoch)]),
    [
      ["z", "blocked", "no connection", 6, [7]],
      ["a", "committing", null, 7, []],
    ],
  );
});

test("without a driver, transactions wait for one", () => {
  assert.equal(bySink([transaction("a", 1, { driver: false })])[0]!.state, "waiting for a driver");
  assert.deepEqual(bySink([]), []);
});
