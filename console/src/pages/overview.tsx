/** The overview of an application: failures, graph with rates, rates over time, epochs as a timeline. */
import { useState } from "preact/hooks";
import { get, resource } from "../api/client";
import { project } from "../api/session";
import type { Epoch, EpochPage, Execution, GraphNode, Load, Page, StateTable, Version } from "../api/types";
import { lengthOf, rateOf } from "../model/epochs";
import { bytes, clipped, clock, count, duration, moment, plain, rate, short, shown } from "../model/format";
import { address, choose, link } from "../router";
import { Chart } from "../ui/chart";
import { now, useData } from "../ui/data";
import type { NodeFacts } from "../ui/graph";
import { lazy } from "../ui/lazy";
import { Age, Facts, FailureNotice, Loading, Problem, State } from "../ui/parts";
import type { View } from "./application";

const GraphView = lazy(() => import("../ui/graph"), "the graph");
const SHOWN_EPOCHS = 100;
const FIRST_EPOCHS = 20;

export function Overview({ application }: View) {
  const name = application.name;
  const path = (...segments: string[]) => resource(project.value, "applications", name, ...segments);
  const mine = (kinds: string[]) => (event: { application: string | null; kind: string }) =>
    event.application === name && kinds.includes(event.kind);
  const epochs = useData(`epochs ${path()}`, (signal) => get<EpochPage>(path("epochs"), { limit: SHOWN_EPOCHS }, signal), mine(["epoch"]));
  const load = useData(`load ${path()}`, (signal) => get<Load>(path("load"), {}, signal), mine(["epoch", "execution"]));
  const versions = useData(`versions ${path()}`, (signal) => get<Page<Version>>(path("versions"), { limit: 50 }, signal), mine(["operation", "execution"]));
  const tables = useData(
    `tables ${path()}`,
    (signal) => get<Page<StateTable>>(path("state"), { limit: 100 }, signal).catch(() => ({ items: [], next_cursor: null })),
    mine(["epoch"]),
  );
  const executions = useData(`executions ${path()}`, (signal) => get<Page<Execution>>(path("executions"), { limit: 5 }, signal), mine(["execution"]));
  const version = versions.value?.items.find((each) => each.number === application.version) ?? versions.value?.items[0];
  const failures = (executions.value?.items ?? []).flatMap((execution) =>
    execution.attempts.filter((attempt) => attempt.failure).map((attempt) => ({ execution, attempt })),
  );
  const failure = application.failure ?? application.restarts?.failure;
  const list = epochs.value?.items ?? [];
  return (
    <>
      {failure && (
        <FailureNotice
          failure={failure}
          title={application.state === "failed" ? "The application has failed." : "The latest attempt failed; another one follows."}
        />
      )}
      {application.detail && !failure && <p class="notice">{application.detail}</p>}
      <section class="card" aria-labelledby="graph-title">
        <h2 id="graph-title">
          Graph <small>version {application.version}</small>
        </h2>
        {version?.graph ? (
          <GraphPart name={name} version={version} load={load.value} tables={tables.value?.items ?? []} epochs={list} running={application.state === "running"} />
        ) : (
          <Loading what="the graph" />
        )}
      </section>
      <Problem problem={epochs.problem} retry={epochs.reload} />
      {list.length > 1 && <Rates epochs={list} />}
      <Timeline epochs={list} page={epochs.value} path={path("epochs")} />
      {failures.length > 0 && (
        <section class="card" aria-labelledby="failures-title">
          <h2 id="failures-title">Failed attempts</h2>
          {failures.slice(0, 10).map(({ execution, attempt }) => (
            <details key={`${execution.id}/${attempt.number}`} class="opening">
              <summary>
                <span>attempt {attempt.number}</span>
                <State name={attempt.state} />
                <span>{attempt.ended_at ? <Age at={attempt.ended_at} /> : ""}</span>
                <span class="grow">{clipped(`${attempt.failure!.type}: ${attempt.failure!.message}`, 160)}</span>
              </summary>
              <FailureNotice failure={attempt.failure!} title={`Attempt ${attempt.number}, version ${execution.version}.`} />
            </details>
          ))}
        </section>
      )}
      <Settings application={application} />
    </>
  );
}

function GraphPart(props: { name: string; version: Version; load: Load | undefined; tables: StateTable[]; epochs: Epoch[]; running: boolean }) {
  const { load, tables } = props;
  const [selected, setSelected] = useState<number | null>(null);
  const graph = props.version.graph!;
  const rates = props.running ? (load?.operators ?? {}) : {};
  const share = (name: string) => {
    const operator = rates[name];
    return operator && load && load.seconds > 0 ? (operator.busy_seconds ?? 0) / load.seconds / Math.max(1, operator.subtasks ?? 1) : null;
  };
  const slowest = Object.keys(rates).sort((one, other) => (share(other) ?? 0) - (share(one) ?? 0))[0];
  const perSecond = (name: string) => {
    const operator = rates[name];
    return operator && load && load.seconds > 0 ? rate((operator.rows ?? 0) / load.seconds) : "";
  };
  const stateful = (node: GraphNode) => node.type !== "source" && node.type !== "sink" && node.name in (load?.operators ?? {});
  const facts = (node: GraphNode): NodeFacts => {
    const own = tables.filter((table) => table.operator === node.name);
    const rows = own.reduce((sum, table) => sum + (table.rows ?? 0), 0);
    if (node.type === "source") {
      const input = props.running ? rateOf(props.epochs.slice(0, 20)) : null;
      const sources = graph.nodes.filter((each) => each.type === "source").length;
      const lag = props.running && load?.lag_seconds ? `lag ${duration(load.lag_seconds * 1000)}` : "";
      return { line: sources === 1 && input !== null ? rate(input) : String(node.description?.kind ?? ""), more: lag, hot: false };
    }
    if (node.type === "sink" || node.type === "static") return { line: String(node.description?.kind ?? ""), more: "", hot: false };
    const busy = share(node.name);
    return {
      line: busy === null ? "" : `${(busy * 100).toFixed(busy < 0.1 ? 1 : 0)} % busy`,
      more: own.length > 0 ? (rows < 10_000 ? count(rows, "key") : `${short(rows)} keys`) : "",
      hot: node.name === slowest && Object.keys(rates).length > 1 && stateful(node),
    };
  };
  const node = graph.nodes.find((each) => each.id === selected);
  return (
    <>
      <GraphView
        graph={graph}
        facts={facts}
        edge={(_, to) => (stateful(to) ? perSecond(to.name) : "")}
        selected={selected}
        select={setSelected}
        label="Graph of sources, operators and sinks"
      />
      <p class="quiet caption">
        {load?.reported_at && props.running ? (
          <>
            Rates are the mean of the last {duration(load.seconds * 1000)}, reported <Age at={load.reported_at} />. The
            slowest operator is marked. Rates before an aggregate count the groups that Spark has formed.
          </>
        ) : (
          "No rates: the application does not run."
        )}{" "}
        Select a node for its details.
      </p>
      {node && <NodeDetails name={props.name} node={node} load={props.running ? load : undefined} tables={tables.filter((table) => table.operator === node.name)} sink={graph.sinks[node.name]} />}
    </>
  );
}

function NodeDetails(props: { name: string; node: GraphNode; load: Load | undefined; tables: StateTable[]; sink: string | undefined }) {
  const { node, load, tables } = props;
  const operator = node.type === "sink" || node.type === "source" ? undefined : load?.operators[node.name];
  const facts: [string, preact.ComponentChildren][] = Object.entries(node.description ?? {}).map(([name, value]) => [
    name.replaceAll("_", " "),
    <code>{clipped(typeof value === "string" ? value : plain(value as never), 300)}</code>,
  ]);
  if (node.type === "sink" && props.sink) facts.push(["target", <code>{props.sink}</code>]);
  if (operator) {
    facts.push(["subtasks", count(operator.subtasks ?? 0, "subtask")]);
    facts.push(["rows", `${count(operator.rows ?? 0, "row")} in ${duration((load?.seconds ?? 0) * 1000)}`]);
    facts.push(["latest epoch", `${count(operator.epoch_rows ?? 0, "row")}, ${duration((operator.epoch_busy_seconds ?? 0) * 1000)} of work`]);
    if (operator.skew) facts.push(["skew", `the largest subtask has ${operator.skew.toFixed(2)} times the mean number of rows${operator.skewed ? " (skewed)" : ""}`]);
    if (operator.stragglers?.length) facts.push(["stragglers", count(operator.stragglers.length, "subtask")]);
  }
  return (
    <div class="details" aria-live="polite">
      <h3>
        {node.type} {node.name}
      </h3>
      <Facts items={facts} />
      {tables.map((table) => (
        <p key={table.table}>
          State <a href={`${link("applications", props.name, "state")}?table=${encodeURIComponent(table.table)}`}>{table.table}</a>
          {table.rows !== null && `, ${count(table.rows, "row")}`}
        </p>
      ))}
      {node.columns && (
        <details>
          <summary>{count(Object.keys(node.columns).length, "column")}</summary>
          <ul class="columns">
            {Object.entries(node.columns)
              .slice(0, 500)
              .map(([name, type]) => (
                <li key={name}>
                  {name} <code>{type}</code>
                </li>
              ))}
          </ul>
        </details>
      )}
    </div>
  );
}

function Rates({ epochs }: { epochs: Epoch[] }) {
  const done = epochs.filter((epoch) => epoch.state === "committed" && epoch.committed_at && epoch.rows_in !== null).reverse();
  if (done.length < 2) return null;
  const times = done.map((epoch) => epoch.committed_at!);
  const lengths = done.map((epoch) => (lengthOf(epoch) ?? 0) / 1000);
  return (
    <div class="pair">
      <section class="card" aria-labelledby="rows-title">
        <h2 id="rows-title">
          Rows read <small>by epoch</small>
        </h2>
        <Chart times={times} series={[{ label: "Rows", unit: "", values: done.map((epoch) => epoch.rows_in ?? 0) }]} label={`Rows read in each of the last ${count(done.length, "epoch")}`} height={130} format={short} />
      </section>
      <section class="card" aria-labelledby="length-title">
        <h2 id="length-title">
          Duration <small>by epoch, until its sinks have committed</small>
        </h2>
        <Chart times={times} series={[{ label: "Duration", unit: "", values: lengths }]} label={`Duration of the last ${count(done.length, "epoch")}`} height={130} format={(value) => duration(value * 1000)} />
      </section>
    </div>
  );
}

function Timeline({ epochs, page, path }: { epochs: Epoch[]; page: EpochPage | undefined; path: string }) {
  const [older, setOlder] = useState<{ path: string; items: Epoch[]; cursor: string | null }>({ path: "", items: [], cursor: null });
  const opened = address.value.query.get("epoch");
  const known = new Set(epochs.map((epoch) => `${epoch.branch}/${epoch.epoch}`));
  const rest = older.items.filter((epoch) => !known.has(`${epoch.branch}/${epoch.epoch}`));
  const position = [...epochs, ...rest].findIndex((epoch) => String(epoch.epoch) === opened);
  const [few, setFew] = useState(position < FIRST_EPOCHS);
  const linked = useData(`epoch ${path} ${opened} ${page !== undefined && position < 0}`, async (signal) =>
    opened && page && position < 0 ? get<Epoch>(`${path}/${encodeURIComponent(opened)}`, {}, signal) : null,
  );
  const shownEpochs = [...epochs, ...rest].slice(0, few ? FIRST_EPOCHS : undefined);
  const all = linked.value && position < 0 ? [linked.value, ...shownEpochs] : shownEpochs;
  const most = Math.max(...all.map((epoch) => lengthOf(epoch) ?? 0), 1);
  const cursor = older.path === path ? older.cursor : page?.next_cursor;
  const more = async () => {
    const next = await get<EpochPage>(path, { limit: SHOWN_EPOCHS, cursor });
    setOlder((before) => ({ path, items: [...before.items, ...next.items], cursor: next.next_cursor }));
  };
  return (
    <section class="card flush" aria-labelledby="epochs-title">
      <h2 id="epochs-title">
        Epochs <small>newest first; open one for its steps</small>
      </h2>
      <Problem problem={linked.problem} />
      {page === undefined ? (
        <Loading what="epochs" />
      ) : all.length === 0 ? (
        <p class="empty">No epoch yet. The first one takes some seconds longer, because Spark compiles its plan.</p>
      ) : (
        <div class="epochs">
          <div class="epochrow head" aria-hidden="true">
            <span>Epoch</span>
            <span>State</span>
            <span class="wide">Time</span>
            <span>Rows in, out</span>
            <span class="wide">State rows</span>
            <span>Committed</span>
          </div>
          {all.map((epoch) => (
            <EpochRow key={`${epoch.branch}/${epoch.epoch}`} epoch={epoch} most={most} open={opened === String(epoch.epoch)} />
          ))}
          {!few && page.folded?.map((range) => (
            <p key={`${range.branch}/${range.first}`} class="folded">
              Epochs {range.first} to {range.last} have expired: {count(range.rows_in, "row")} in.
            </p>
          ))}
        </div>
      )}
      {(cursor || (few && epochs.length > FIRST_EPOCHS)) && (
        <p class="more">
          <button type="button" onClick={() => (few ? setFew(false) : void more())}>
            Show older epochs
          </button>
        </p>
      )}
    </section>
  );
}

function EpochRow({ epoch, most, open }: { epoch: Epoch; most: number; open: boolean }) {
  const started = Date.parse(epoch.started_at);
  const running = (epoch.prepared_at ? Date.parse(epoch.prepared_at) : epoch.state === "started" ? Math.max(now.value, started) : started) - started;
  const publishing = epoch.prepared_at && epoch.committed_at ? Date.parse(epoch.committed_at) - Date.parse(epoch.prepared_at) : 0;
  const total = running + publishing;
  const share = (ms: number) => `${Math.min(100, (ms / Math.max(most, total)) * 100)}%`;
  return (
    <div class={`epoch ${epoch.state}`}>
      <button
        type="button"
        class="epochrow"
        aria-expanded={open}
        onClick={() => choose({ epoch: open ? null : String(epoch.epoch) })}
      >
        <span class="number">{epoch.epoch}</span>
        <span>
          <State name={epoch.state} />
        </span>
        <span class="wide bar" title={`${duration(running)} until prepared, ${duration(publishing)} until committed`}>
          <i class="run" style={{ width: share(running) }} />
          <i class="publish" style={{ width: share(publishing) }} />
          <b>{duration(total)}</b>
        </span>
        <span class="number">
          {epoch.rows_in === null || epoch.rows_in === undefined ? "" : `${short(epoch.rows_in)} in, ${short(epoch.rows_out ?? 0)} out`}
        </span>
        <span class="wide number">{epoch.state_rows === null || epoch.state_rows === undefined ? "" : `${short(epoch.state_rows)} rows, ${bytes(epoch.state_bytes ?? 0)}`}</span>
        <span>
          <Age at={epoch.committed_at ?? epoch.prepared_at ?? epoch.started_at} />
        </span>
      </button>
      {open && <EpochDetails epoch={epoch} running={running} publishing={publishing} />}
    </div>
  );
}

const REASONS: Record<string, string> = {
  input: "input was available",
  due: "a timer or window was due",
  in_flight: "records of a loop were in flight",
  command: "a command",
  drain: "all input has ended",
};

function EpochDetails({ epoch, running, publishing }: { epoch: Epoch; running: number; publishing: number }) {
  const facts: [string, preact.ComponentChildren][] = [
    ["Opened for", epoch.opened_for.map((reason) => REASONS[reason] ?? reason).join(", ") || "not prepared yet"],
    ["Attempt, version", `attempt ${epoch.attempt}${epoch.version ? `, version ${epoch.version}` : ""}`],
    ["Branch", <code>{epoch.branch}</code>],
    ["Parent", epoch.parent ? `epoch ${epoch.parent.epoch}` : "none: the first epoch"],
  ];
  for (const [name, watermarks] of Object.entries(epoch.watermarks)) {
    facts.push([`Watermark ${name}`, watermarks.ended ? "all input has ended" : watermarks.fire ? moment(watermarks.fire) : "not known yet"]);
  }
  for (const [what, rows] of [["late", epoch.late_rows], ["rejected", epoch.rejected_rows]] as const) {
    for (const [name, number] of Object.entries(rows)) facts.push([`${name}, ${what}`, count(number, "row")]);
  }
  for (const [name, records] of Object.entries(epoch.in_flight ?? {})) facts.push([`Loop ${name}`, `${count(records, "record")} in flight`]);
  if (epoch.next_due?.at) facts.push(["Next due", `${moment(epoch.next_due.at)}, ${epoch.next_due.operator}`]);
  for (const change of epoch.changes) facts.push([`Change: ${change.kind}`, clipped(shown(change.detail), 300)]);
  if (epoch.collected_at) facts.push(["Files", `deleted ${moment(epoch.collected_at)}`]);
  return (
    <div class="details">
      {epoch.failure && <FailureNotice failure={epoch.failure} title="The epoch was aborted." />}
      <ol class="steps">
        <li>
          <b>E1</b> opened {clock(epoch.started_at)}
        </li>
        <li class={epoch.prepared_at ? "" : "pending"}>
          <b>E2 to E4</b> {epoch.prepared_at ? `run, collected and prepared in ${duration(running)}` : epoch.state === "aborted" ? "not prepared" : "in progress"}
        </li>
        <li class={epoch.committed_at ? "" : "pending"}>
          <b>E5 to E6</b> {epoch.committed_at ? `committed by sinks and published in ${duration(publishing)}` : epoch.state === "aborted" ? "not committed" : "waits"}
        </li>
      </ol>
      <Facts items={facts} />
    </div>
  );
}

function Settings({ application }: { application: View["application"] }) {
  return (
    <details class="card settings">
      <summary>
        <h2>Parameters and configuration</h2>
      </summary>
      <Facts
        items={[
          ...Object.entries(application.parameters).map(([name, value]): [string, preact.ComponentChildren] => [name, <code>{clipped(plain(value as never), 500)}</code>]),
          ["Code", <code>{application.artifact.slice(0, 12)}</code>],
          ["Created", moment(application.created_at)],
          ...Object.entries(application.configuration)
            .filter(([, value]) => value !== null)
            .map(([name, value]): [string, preact.ComponentChildren] => [name.replaceAll("_", " "), <code>{clipped(plain(value as never), 300)}</code>]),
        ]}
      />
    </details>
  );
}
