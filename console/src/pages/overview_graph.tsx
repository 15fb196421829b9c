/** The graph of an application with its figures, and the details of one node. */
import type { Epoch, GraphNode, Load, StateTable, Version } from "../api/types";
import { clipped, count, duration, plain, rate } from "../model/format";
import { addressOf, figuresOf, nodeAt, rateOfEdge, slowestOf } from "../model/graph";
import { address, choose, link } from "../router";
import { now } from "../ui/data";
import { lazy } from "../ui/lazy";
import { Age, Facts } from "../ui/parts";

const GraphView = lazy(() => import("../ui/graph"), "the graph");

export function GraphPart(props: { name: string; version: Version; load: Load | undefined; tables: StateTable[]; epochs: Epoch[]; running: boolean }) {
  const graph = props.version.graph!;
  const load = props.running ? props.load : undefined;
  const measured = { graph, load, tables: props.tables, epochs: props.epochs };
  const slowest = slowestOf(load);
  const node = nodeAt(graph, address.value.query.get("node"));
  return (
    <>
      {load?.store_away_since && (
        <p class="notice bad">
          The snapshot store has not answered since <Age at={load.store_away_since} />. Epochs wait for it.
        </p>
      )}
      <GraphView
        graph={graph}
        figures={(each) => figuresOf(measured, each, slowest, now.value)}
        edge={(from, to) => {
          const found = rateOfEdge(load, from, to);
          return found === null ? "" : rate(found);
        }}
        selected={node?.id ?? null}
        select={(id) => choose({ node: id === null ? null : addressOf(graph, graph.nodes[id]!) })}
        label="Graph of sources, operators and sinks"
      />
      <p class="quiet caption">
        {load?.reported_at ? (
          <>
            Rates are the mean of the last {duration(load.seconds * 1000)}, reported <Age at={load.reported_at} />. An
            operator is busy while its subtasks work. Rates before an aggregate count the groups that Spark has formed.
          </>
        ) : (
          "No rates: the application does not run."
        )}{" "}
        Select a node for its details.
      </p>
      {node && <NodeDetails name={props.name} node={node} load={load} tables={props.tables.filter((table) => table.operator === node.name)} sink={graph.sinks[node.name]} />}
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
