import assert from "node:assert/strict";
import { test } from "node:test";
import { stepsOf } from "../src/model/steps";
import type { Epoch } from "../src/api/types";

function epoch(more: Partial<Epoch>): Epoch {
  return { state: "committed", started_at: "2026-01-01T00:00:00Z", durations: null, failure: null, ...more } as Epoch;
}

const TASKS = { T1: { longest: 0.1, total: 0.3 }, T2: { longest: 0.2, total: 0.4 } };

test("each step begins where the one before has ended, and tasks begin with E2", () => {
  const bars = stepsOf(epoch({ durations: { steps: { E1: 0.5, E2: 1, E3: 0, E4: 0.25, E5: 2, E6: 0.1 }, tasks: TASKS } }));
  assert.deepEqual(
    bars.map((bar) => [bar.step, bar.start, bar.ms]),
    [["E1", 0, 500], ["E2", 500, 1000], ["T1", 500, 100], ["T2", 600, 200], ["E3", 1500, 0], ["E4", 1500, 250], ["E5", 1750, 2000], ["E6", 3750, 100], ["E7", 3850, null]],
  );
  assert.equal(bars.at(-1)!.state, "waiting");
});

test("an aborted epoch fails at the step of its failure, and reaches no later one", () => {
  const states = (more: Partial<Epoch>) => Object.fromEntries(stepsOf(epoch({ state: "aborted", ...more })).map((bar) => [bar.step, bar.state]));
  const named = states({ durations: { steps: { E1: 0.5 }, tasks: {} }, failure: { type: "computation-failed", message: "", step: "T2" } as Epoch["failure"] });
  assert.deepEqual(named, { E1: "done", E2: "failed", E3: "unreached", E4: "unreached", E5: "unreached", E6: "unreached", E7: "unreached" });
  const unnamed = states({ durations: { steps: { E1: 0.5, E2: 1 }, tasks: {} } });
  assert.equal(unnamed.E3, "failed");
});

test("an epoch without durations has the bars of its times", () => {
  const bars = stepsOf(epoch({ prepared_at: "2026-01-01T00:00:02Z", committed_at: "2026-01-01T00:00:05Z" }));
  assert.deepEqual(bars.map((bar) => [bar.step, bar.ms, bar.state]), [["E1 to E4", 2000, "done"], ["E5, E6", 3000, "done"]]);
});
