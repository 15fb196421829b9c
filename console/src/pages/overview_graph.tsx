/** The graph of an application with its figures. `?node=` selects one of its nodes. */
import { useRef } from "preact/hooks";
import type { Epoch, Load, StateTable, Version } from "../api/types";
import { duration, rate } from "../model/format";
import { addressOf, figuresOf, nodeAt, rateOfEdge, slowestOf } from "../model/graph";
import { address, choose } from "../router";
import { now } from "../ui/data";
import { lazy } from "../ui/lazy";
import { Age } from "../ui/parts";
import { NodePanel } from "./node";

const GraphView = lazy(() => import("../ui/graph"), "the graph");

export function GraphPart(props: { name: string; version: Version; load: Load | undefined; tables: StateTable[]; epochs: Epoch[]; running: boolean }) {
  const graph = props.version.graph!;
  const load = props.running ? props.load : undefined;
  const measured = { graph, load, tables: props.tables, epochs: props.epochs };
  const slowest = slowestOf(load);
  const chosen = useRef(false);
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
        select={(id) => {
          chosen.current = true;
          choose({ node: id === null ? null : addressOf(graph, graph.nodes[id]!) });
        }}
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
        {props.tables.length > 0 && "Bytes of state are those of all of its files in the snapshot store, compressed, with earlier values until their compaction. "}
        Select a node for its details.
      </p>
      {node && (
        <NodePanel
          {...measured}
          name={props.name}
          version={props.version}
          node={node}
          figures={figuresOf(measured, node, slowest, now.value)}
          tables={props.tables.filter((table) => table.operator === node.name)}
          chosen={chosen.current}
          close={() => {
            choose({ node: null });
            document.querySelector<SVGElement>(`.graph [data-node="${node.id}"]`)?.focus();
          }}
        />
      )}
    </>
  );
}
