/** The graph of an application with its figures, and the details of one node. */
import { useState } from "preact/hooks";
import type { Epoch, GraphNode, Load, StateTable, Version } from "../api/types";
import { rateOf } from "../model/epochs";
import { clipped, count, duration, plain, rate, short } from "../model/format";
import { link } from "../router";
import type { NodeFacts } from "../ui/graph";
import { lazy } from "../ui/lazy";
import { Age, Facts } from "../ui/parts";

const GraphView = lazy(() => import("../ui/graph"), "the graph");

export function GraphPart(props: { name: string; version: Version; load: Load | undefined; tables: StateTable[]; epochs: Epoch[]; running: boolean }) {
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
