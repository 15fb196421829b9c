import assert from "node:assert/strict";
import { test } from "node:test";
import type { Lag } from "../src/api/types";
import { behind, waits } from "../src/model/lags";

function lag(more: object): Lag {
  return { application: "a", reported_at: null, rows_per_second: null, blocked_sinks: {}, store_away_since: null, sources: {}, ...more };
}
const source = { records: null, files: null, seconds: null, reachable: true };

test("the lag is that of the source that is furthest behind, in its units", () => {
  assert.equal(behind(lag({})), null);
  assert.equal(behind(lag({ sources: { a: source } })), null);
  assert.deepEqual(behind(lag({ sources: { a: { ...source, seconds: 0, records: 0 } } })), { text: "no lag", late: false });
  const two = { a: { ...source, seconds: 90, records: 2000 }, b: { ...source, seconds: 3, files: 1 } };
  assert.deepEqual(behind(lag({ sources: two })), { text: "90 s behind, 2,000 records, 1 file", late: true });
  assert.deepEqual(behind(lag({ sources: { a: { ...source, records: 7 } } })), { text: "7 records behind", late: false });
});

test("what an application waits for is named with its time", () => {
  const now = Date.parse("2026-01-01T00:01:30Z");
  const at = "2026-01-01T00:00:00Z";
  assert.deepEqual(waits(undefined, now), []);
  assert.deepEqual(waits(lag({ store_away_since: at, blocked_sinks: { out: at }, sources: { a: { ...source, reachable: false } } }), now), [
    "waits for the store, 90 s",
    "waits for sink out, 90 s",
    "source a does not answer",
  ]);
});
