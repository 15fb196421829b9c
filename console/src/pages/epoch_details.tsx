/** An opened epoch: a bar for each step, the cause of an abort, figures, and the way to its log. */
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type { Epoch } from "../api/types";
import { bytes, clipped, count, duration, moment, shown } from "../model/format";
import { stepsOf, type StepBar } from "../model/steps";
import { link } from "../router";
import { Facts, FailureNotice } from "../ui/parts";

const REASONS: Record<string, string> = {
  input: "input was available",
  due: "a timer or window was due",
  in_flight: "records of a loop were in flight",
  command: "a command",
  drain: "all input has ended",
};
/** A driver reports durations at most five seconds after a step. */
const REPORTED_MS = 6000;

export function EpochDetails({ name, epoch, reload }: { name: string; epoch: Epoch; reload: () => void }) {
  const ended = epoch.committed_at ?? (epoch.state === "aborted" ? epoch.started_at : null);
  const late = ended !== null && !(epoch.durations && (epoch.state === "aborted" || "E6" in epoch.durations.steps));
  useEffect(() => {
    if (!late || Date.now() - Date.parse(ended) > 60_000) return;
    const timer = setTimeout(reload, REPORTED_MS);
    return () => clearTimeout(timer);
  }, [late, epoch.epoch]);
  const facts: [string, ComponentChildren][] = [
    ["Opened for", epoch.opened_for.map((reason) => REASONS[reason] ?? reason).join(", ") || "not prepared yet"],
    ["Attempt, version", `attempt ${epoch.attempt}${epoch.version ? `, version ${epoch.version}` : ""}`],
    ["Branch", <code>{epoch.branch}</code>],
    ["Parent", epoch.parent ? `epoch ${epoch.parent.epoch}` : "none: the first epoch"],
  ];
  if (epoch.state_rows !== null && epoch.state_rows !== undefined) {
    facts.push(["State written", `${count(epoch.state_rows, "changed row")}, ${bytes(epoch.state_bytes ?? 0)} of files`]);
  }
  for (const [place, watermarks] of Object.entries(epoch.watermarks)) {
    facts.push([`Watermark ${place}`, watermarks.ended ? "all input has ended" : watermarks.fire ? moment(watermarks.fire) : "not known yet"]);
  }
  for (const [what, rows] of [["late", epoch.late_rows], ["rejected", epoch.rejected_rows]] as const) {
    for (const [place, number] of Object.entries(rows)) facts.push([`${place}, ${what}`, count(number, "row")]);
  }
  for (const [loop, records] of Object.entries(epoch.in_flight ?? {})) facts.push([`Loop ${loop}`, `${count(records, "record")} in flight`]);
  if (epoch.next_due?.at) facts.push(["Next due", `${moment(epoch.next_due.at)}, ${epoch.next_due.operator}`]);
  for (const change of epoch.changes) facts.push([`Change: ${change.kind}`, clipped(shown(change.detail), 300)]);
  if (epoch.collected_at) facts.push(["Files", `deleted ${moment(epoch.collected_at)}`]);
  return (
    <div class="details">
      {epoch.failure && <FailureNotice failure={epoch.failure} title="The epoch was aborted." />}
      <Steps epoch={epoch} />
      <Facts items={facts} />
      <p>
        <a href={`${link("applications", name, "logs")}?attempt=${epoch.attempt}&branch=${encodeURIComponent(epoch.branch)}&epoch=${epoch.epoch}`}>
          Log of epoch {epoch.epoch}, attempt {epoch.attempt}
        </a>
      </p>
    </div>
  );
}

function Steps({ epoch }: { epoch: Epoch }) {
  const bars = stepsOf(epoch);
  const whole = Math.max(1, ...bars.map((bar) => bar.start + (bar.ms ?? 0)));
  const measured = bars.length > 2;
  return (
    <>
      <ol class="steps" aria-label={`Steps of epoch ${epoch.epoch}`}>
        {bars.map((bar) => (
          <li key={bar.step} class={`${bar.state}${bar.step.startsWith("T") ? " task" : ""}`}>
            <b>{bar.step}</b>
            <span class="what">
              {bar.what}
              {bar.allTasksMs !== undefined && `; ${lengthText(bar.allTasksMs)} in all tasks`}
            </span>
            <span class="track" aria-hidden="true">
              {bar.ms !== null && <i class={bar.step > "E4" && bar.step < "E7" ? "publish" : "run"} style={{ marginLeft: `${(bar.start / whole) * 100}%`, width: `${(bar.ms / whole) * 100}%` }} />}
            </span>
            <span class="number">{endText(bar)}</span>
          </li>
        ))}
      </ol>
      <p class="quiet caption">
        {measured ? "E5 lasts until every sink has committed. T1 to T3 are parts of E2, in the slowest task." : "No driver has reported the duration of each step."}
      </p>
    </>
  );
}

function endText(bar: StepBar): string {
  if (bar.state === "failed") return bar.ms === null ? "failed" : `failed after ${lengthText(bar.ms)}`;
  if (bar.ms === null) return { unreached: "not reached", waiting: "not yet", unknown: "not reported", done: "" }[bar.state];
  return lengthText(bar.ms);
}

function lengthText(ms: number): string {
  return ms < 1 ? "under 1 ms" : duration(ms);
}
