/** What changed what runs (why, from what to what, how long), and where its subtasks run. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { get, resource } from "../api/client";
import { project } from "../api/session";
import type { Execution, LifecycleItem, Page, Placement, Schemas } from "../api/types";
import { curl, epochal, literal, python } from "../model/commands";
import { bytes, clipped, count, duration } from "../model/format";
import { link } from "../router";
import { now, useData } from "../ui/data";
import { Age, CopyAs, Facts, FailureNotice, Loading, Problem, State } from "../ui/parts";
import type { View } from "./application";

const FIRST = 30;

export default function History({ application }: View) {
  const name = application.name;
  const path = (...segments: string[]) => resource(project.value, "applications", name, ...segments);
  const data = useData(
    `lifecycle ${path()}`,
    (signal) => get<Page<LifecycleItem>>(path("lifecycle"), { limit: FIRST }, signal),
    (event) => event.application === name && (event.kind === "execution" || event.kind === "operation"),
  );
  const executions = useData(
    `executions ${path()}`,
    (signal) => get<Page<Execution>>(path("executions"), { limit: 50 }, signal),
    (event) => event.application === name && event.kind === "execution",
  );
  const [older, setOlder] = useState<{ items: LifecycleItem[]; cursor: string | null } | null>(null);
  const recent = data.value?.items ?? [];
  const known = new Set(recent.map(idOf));
  const items = [...recent, ...(older?.items ?? []).filter((item) => !known.has(idOf(item)))];
  const cursor = older ? older.cursor : data.value?.next_cursor;
  const more = async () => {
    const next = await get<Page<LifecycleItem>>(path("lifecycle"), { limit: FIRST, cursor });
    setOlder((before) => ({ items: [...(before?.items ?? []), ...next.items], cursor: next.next_cursor }));
  };
  const branches = new Map(executions.value?.items.map((execution) => [execution.id, execution]));
  return (
    <>
      <header class="title tools">
        <h2>History of the application</h2>
        <span class="push" />
        <CopyAs
          commands={() => ({
            cli: epochal(project.value, "lifecycle", name),
            curl: curl(path("lifecycle")),
            python: python(project.value, `client.application(${literal(name)}).lifecycle()`),
          })}
        />
      </header>
      <Problem problem={data.problem} retry={data.reload} />
      <section class="card flush" aria-label="Starts, stops, restarts, rescales, upgrades, rollbacks and recoveries, newest first">
        {data.value === undefined ? (
          !data.problem && <Loading what="the history" />
        ) : items.length === 0 ? (
          <p class="empty">The application was never started.</p>
        ) : (
          <ol class="history">
            {items.map((item) => (
              <Change key={idOf(item)} name={name} item={item} execution={branches.get(item.execution ?? "")} />
            ))}
          </ol>
        )}
        {cursor && (
          <p class="more">
            <button type="button" onClick={() => void more()}>
              Show older changes
            </button>
          </p>
        )}
      </section>
      {(application.state === "running" || application.state === "starting") && <PlacementPart path={path("placement")} name={name} />}
    </>
  );
}

function idOf(item: LifecycleItem): string {
  return item.operation ?? `${item.execution}/${item.attempt}`;
}

function Change({ name, item, execution }: { name: string; item: LifecycleItem; execution: Execution | undefined }) {
  const tookMs = item.seconds === null ? now.value - Date.parse(item.began_at) : item.seconds * 1000;
  const attempt = item.attempt ?? (item.kind === "stop" ? null : execution?.attempts[0]?.number);
  const on = execution?.branch ? `&branch=${encodeURIComponent(execution.branch)}` : "";
  const change = changed(item);
  return (
    <li class={item.state}>
      <b class="kind">{item.kind === "recovery" ? `recovery, attempt ${item.attempt}` : item.kind}</b>
      <State name={item.state} />
      <span class="when">
        <Age at={item.began_at} />
        <small>{item.seconds === null ? `for ${duration(Math.max(0, tookMs))}` : `took ${duration(tookMs)}`}</small>
      </span>
      <span class="what">
        {change && <span>{change}</span>}
        {item.message && <span>{clipped(item.message, 300)}</span>}
        {item.kind === "recovery" ? <small>a new driver, after one that failed or was lost</small> : item.by && <small>by {item.by}</small>}
      </span>
      {attempt !== null && attempt !== undefined && (
        <a href={`${link("applications", name, "logs")}?attempt=${attempt}${on}`}>
          Log<span class="hidden"> of attempt {attempt}</span>
        </a>
      )}
      {item.error && <p class="badtext">{item.error.detail}</p>}
      {item.cause && (
        <details>
          <summary class="badtext">{clipped(item.cause.message.split("\n")[0] ?? "", 200)}</summary>
          <FailureNotice failure={item.cause} title="The attempt before ended." />
        </details>
      )}
    </li>
  );
}

type Settings = Schemas["RunSettings"];

/** From what to what: only what differs. */
function changed({ before, after }: LifecycleItem): string {
  if (!after) return "";
  if (!before) return `version ${after.version}, ${count(after.parallelism, "subtask")}`;
  const parts = before.version === after.version ? [] : [`version ${before.version} → ${after.version}`];
  if (before.parallelism !== after.parallelism) parts.push(`${count(before.parallelism, "subtask")} → ${after.parallelism}`);
  const own = (settings: Settings, operator: string) => settings.parallelisms[operator] ?? settings.parallelism;
  for (const operator of new Set([...Object.keys(before.parallelisms), ...Object.keys(after.parallelisms)])) {
    if (own(before, operator) !== own(after, operator)) parts.push(`${operator}: ${count(own(before, operator), "subtask")} → ${own(after, operator)}`);
  }
  return parts.join("; ");
}

const ORIGINS: Record<string, string> = { memory: "from memory", disk: "from the cache of the machine", store: "from the store" };

function PlacementPart({ path, name }: { path: string; name: string }) {
  const data = useData(
    `placement ${path}`,
    (signal) => get<Placement>(path, {}, signal),
    (event) => event.application === name && event.kind === "epoch" && event.data.state === "committed",
  );
  const placement = data.value;
  const operators = Object.keys(placement?.machines ?? {});
  const machines = [...new Set(Object.values(placement?.machines ?? {}).flat())].sort();
  const facts: [string, ComponentChildren][] = [];
  if (placement) {
    facts.push(["State read in the epoch", Object.entries(placement.read_bytes).map(([origin, size]) => `${bytes(size)} ${ORIGINS[origin] ?? origin}`).join(", ") || "none"]);
    facts.push(["Moves of subtasks", `${count(placement.moves, "move")} since the attempt began`]);
    if (placement.unplaced) facts.push(["Not placed", placement.unplaced]);
  }
  return (
    <section class="card" aria-labelledby="placement-title">
      <h2 id="placement-title">
        Placement{" "}
        <small>
          {placement?.epoch ? `epoch ${placement.epoch}` : ""}
          {placement?.reported_at && (
            <>
              , reported <Age at={placement.reported_at} />
            </>
          )}
        </small>
      </h2>
      <Problem problem={data.problem} retry={data.reload} />
      {placement && placement.epoch === null && <p class="quiet">The driver has not reported an epoch yet.</p>}
      {placement && placement.epoch !== null && <Facts items={facts} />}
      {placement && machines.length > 0 && (
        <div class="scroll" tabIndex={0} role="group" aria-label="Subtasks by machine">
          <table>
            <thead>
              <tr>
                <th scope="col">Machine</th>
                {operators.map((operator) => (
                  <th key={operator} scope="col">
                    Subtasks of {operator}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {machines.map((machine) => (
                <tr key={machine}>
                  <th scope="row">{machine}</th>
                  {operators.map((operator) => (
                    <td key={operator}>{subtasks(placement.machines[operator]!, machine)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {placement?.moved_stragglers.map((move) => (
        <p key={`${move.operator}/${move.subtask}/${move.epoch}`}>
          Subtask {move.subtask} of {move.operator} was slow, and moved from {move.origin} to {move.destination} in epoch {move.epoch}.
        </p>
      ))}
    </section>
  );
}

/** `0 to 3, 6`. */
function subtasks(machines: readonly string[], machine: string): string {
  const own = machines.flatMap((each, subtask) => (each === machine ? [subtask] : []));
  const ranges: [number, number][] = [];
  for (const subtask of own) {
    const last = ranges.at(-1);
    if (last && last[1] === subtask - 1) last[1] = subtask;
    else ranges.push([subtask, subtask]);
  }
  return ranges.map(([first, last]) => (first === last ? `${first}` : last === first + 1 ? `${first}, ${last}` : `${first} to ${last}`)).join(", ") || "none";
}
