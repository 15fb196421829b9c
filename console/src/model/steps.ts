/** The steps of an epoch with their durations, as bars after each other. */
import type { Epoch } from "../api/types";

export interface StepBar {
  step: string;
  what: string;
  /** Milliseconds; null: the step has not ended, has failed, or was not measured. */
  ms: number | null;
  /** Milliseconds from the beginning of the epoch to that of the step. */
  start: number;
  state: "done" | "failed" | "unreached" | "waiting" | "unknown";
  /** Tasks of the step; the bar shows the slowest one. */
  allTasksMs?: number;
}

const STEPS: [string, string][] = [
  ["E1", "Open: choose the input"],
  ["E2", "Run the tasks"],
  ["E3", "Collect the handles"],
  ["E4", "Prepare: write the manifest, decide"],
  ["E5", "Commit of the sinks"],
  ["E6", "Publish"],
  ["E7", "Retain: remove files, compact"],
];
const TASKS: [string, string][] = [
  ["T1", "View of the state"],
  ["T2", "Process rows"],
  ["T3", "Pre-commit"],
];

/** Without durations, as of version 0.1.0 or of a killed driver, the times of the epoch give two bars. */
export function stepsOf(epoch: Epoch): StepBar[] {
  const durations = epoch.durations;
  if (!durations || Object.keys(durations.steps).length === 0) return halves(epoch);
  const failed = failedStep(epoch);
  const bars: StepBar[] = [];
  let start = 0;
  let after = false;
  for (const [step, what] of STEPS) {
    const seconds = durations.steps[step];
    const ms = seconds === undefined ? null : seconds * 1000;
    let state: StepBar["state"] = "done";
    if (step === failed) state = "failed";
    else if (ms === null) state = epoch.state === "aborted" ? "unreached" : reached(epoch, step) ? "unknown" : "waiting";
    if (after) state = "unreached";
    bars.push({ step, what, ms, start, state });
    after ||= state === "failed";
    if (step === "E2") {
      let within = start;
      for (const [task, does] of TASKS) {
        const found = durations.tasks[task];
        if (!found) continue;
        bars.push({ step: task, what: does, ms: found.longest * 1000, start: within, state: "done", allTasksMs: found.total * 1000 });
        within += found.longest * 1000;
      }
    }
    start += ms ?? 0;
  }
  return bars;
}

/** The step of the failure, or the first one that has no duration. */
function failedStep(epoch: Epoch): string | null {
  if (epoch.state !== "aborted") return null;
  const named = epoch.failure?.step;
  if (named && /^E[1-4]$/.test(named)) return named;
  if (named && /^T\d$/.test(named)) return "E2";
  return STEPS.find(([step]) => epoch.durations?.steps[step] === undefined)?.[0] ?? null;
}

function reached(epoch: Epoch, step: string): boolean {
  if (epoch.state === "committed") return step !== "E7";
  return epoch.state === "prepared" && step < "E5";
}

function halves(epoch: Epoch): StepBar[] {
  const begun = Date.parse(epoch.started_at);
  const prepared = epoch.prepared_at ? Date.parse(epoch.prepared_at) - begun : null;
  const committed = epoch.committed_at ? Date.parse(epoch.committed_at) - begun : null;
  const missing = epoch.state === "aborted" ? "unreached" : "waiting";
  return [
    { step: "E1 to E4", what: "From open to prepared", ms: prepared, start: 0, state: prepared !== null ? "done" : epoch.state === "aborted" ? "failed" : "waiting" },
    {
      step: "E5, E6",
      what: "Commit of the sinks, publish",
      ms: committed === null || prepared === null ? null : committed - prepared,
      start: prepared ?? 0,
      state: committed !== null ? "done" : missing,
    },
  ];
}
