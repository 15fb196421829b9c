/** One node of a graph: its figures and facts, links to its state, and the code that defines it. */
import { useEffect, useRef, useState } from "preact/hooks";
import { readFiles, reasonOf } from "../api/source";
import { may, project } from "../api/session";
import { resource } from "../api/client";
import type { Epoch, GraphNode, Load, SourceFile, StateTable, Version } from "../api/types";
import { curl, epochal, literal, python } from "../model/commands";
import { bytes, clipped, count, duration, plain, rate } from "../model/format";
import { isOperator, lagOf, percent, rateOfNode, shareOf, watermarkOf, type NodeFigures } from "../model/graph";
import { link } from "../router";
import { useData } from "../ui/data";
import { lazy } from "../ui/lazy";
import { Age, CopyAs, Facts, Loading, Problem } from "../ui/parts";

const CodeView = lazy(() => import("../ui/code"), "the code");

interface Shown {
  name: string;
  version: Version;
  node: GraphNode;
  figures: NodeFigures;
  load: Load | undefined;
  tables: StateTable[];
  epochs: Epoch[];
  /** Whether the node was chosen on this page, which moves the focus here; not by the address. */
  chosen: boolean;
  close: () => void;
}

export function NodePanel(props: Shown) {
  const { node } = props;
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    if (!props.chosen) return;
    heading.current?.focus({ preventScroll: true });
    heading.current?.scrollIntoView({ block: "nearest" });
  }, [node.id]);
  return (
    <section
      class="details node-panel"
      aria-labelledby="node-title"
      onKeyDown={(event) => {
        if (event.key === "Escape") props.close();
      }}
    >
      <header class="row">
        <h3 id="node-title" ref={heading} tabIndex={-1}>
          {node.type} {node.name}
        </h3>
        <span class="push" />
        <button type="button" onClick={props.close}>
          Close
        </button>
      </header>
      {props.figures.waits && <p class="notice bad">{waiting(props)}</p>}
      <Facts items={factsOf(props)} />
      <Links {...props} />
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
      {may("operator") && <Code version={props.version} node={node} />}
    </section>
  );
}

function waiting({ node, load }: Shown): preact.ComponentChildren {
  const blocked = load?.sinks?.[node.name]?.blocked_since;
  if (node.type === "source") return "The system of this source does not answer.";
  if (node.type === "sink" && blocked) return <>Commits of this sink have failed since <Age at={blocked} />. Later epochs wait for it.</>;
  return load?.store_away_since ? <>The snapshot store has not answered since <Age at={load.store_away_since} />. Epochs wait for it.</> : "";
}

function factsOf({ node, load, tables, epochs, version }: Shown): [string, preact.ComponentChildren][] {
  const facts: [string, preact.ComponentChildren][] = [];
  const add = (name: string, value: preact.ComponentChildren) => {
    if (value !== "" && value !== null && value !== undefined) facts.push([name, value]);
  };
  const found = rateOfNode(load, node);
  const share = shareOf(load, node.name);
  const operator = isOperator(node) ? load?.operators[node.name] : undefined;
  const rows = node.type === "source" ? load?.sources?.[node.name]?.rows : node.type === "sink" ? load?.sinks?.[node.name]?.rows : operator?.rows;
  if (load && found !== null) add({ source: "rows read", sink: "rows written" }[node.type] ?? "rows received", `${rate(found)}, ${count(rows ?? 0, "row")} in ${duration(load.seconds * 1000)}`);
  if (node.type === "source") add("lag", lagOf(load, node.name));
  add("watermark", watermarkOf(epochs, node.name));
  if (operator) {
    if (share !== null) add("share of time", `${percent(share)} busy: ${duration((operator.busy_seconds ?? 0) * 1000)} of work of ${count(operator.subtasks ?? 0, "subtask")} in ${duration((load?.seconds ?? 0) * 1000)}`);
    add("latest epoch", `${count(operator.epoch_rows ?? 0, "row")}, ${duration((operator.epoch_busy_seconds ?? 0) * 1000)} of work`);
    if (operator.skew) add("skew", `the largest subtask has ${operator.skew.toFixed(2)} times the mean number of rows${operator.skewed ? " (skewed)" : ""}`);
    if (operator.stragglers?.length) add("stragglers", count(operator.stragglers.length, "subtask"));
  }
  for (const table of tables) {
    const size = load?.tables?.[table.table];
    add(`state ${table.table}`, [table.rows === null ? "" : count(table.rows, "row"), size ? `${bytes(size.bytes)} in files` : ""].filter(Boolean).join(", "));
  }
  for (const [name, value] of Object.entries(node.description ?? {})) {
    if (value !== null) add(name.replaceAll("_", " "), <code>{clipped(typeof value === "string" ? value : plain(value as never), 300)}</code>);
  }
  const target = node.type === "sink" ? version.graph?.sinks[node.name] : undefined;
  if (target) add("target", <code>{target}</code>);
  return facts;
}

function Links({ name, node, tables }: Shown) {
  return (
    <p class="links">
      {tables.map((table) => (
        <a key={table.table} href={`${link("applications", name, "state")}?table=${encodeURIComponent(table.table)}`}>
          State {table.table}
        </a>
      ))}
      {node.type === "sink" && <a href={link("applications", name, "work")}>Transactions of sinks</a>}
      <a href={link("applications", name, "events")}>Events of {name}</a>
    </p>
  );
}

function Code({ version, node }: { version: Version; node: GraphNode }) {
  const { artifact } = version;
  const data = useData(`source ${project.value} ${artifact}`, (signal) => readFiles(artifact, signal));
  const [chosen, choose] = useState<{ node: number; path: string } | null>(null);
  const line = version.graph?.lines?.[node.id] ?? null;
  const files = data.value ?? [];
  const defining = line === null ? undefined : line.file === null || line.file === undefined ? files[0] : files.find((file) => file.path === line.file);
  const top = files.find((file) => file.path === "pipeline.py") ?? files[0];
  const file = (chosen?.node === node.id ? files.find((each) => each.path === chosen.path) : undefined) ?? defining ?? top;
  const path = resource(project.value, "artifacts", artifact, "source");
  return (
    <section class="part" aria-labelledby="code-title">
      <header class="row">
        <h4 id="code-title">
          Code{" "}
          <small>
            {file?.path ?? ""}
            {file && file === defining && line ? `, line ${line.line}` : ""}
          </small>
        </h4>
        <span class="push" />
        {files.length > 1 && (
          <label class="choice">
            <span>File</span>
            <select value={file?.path} onChange={(event) => choose({ node: node.id, path: event.currentTarget.value })}>
              {files.map((each) => (
                <option key={each.path}>{each.path}</option>
              ))}
            </select>
          </label>
        )}
        {file && (
          <CopyAs
            commands={() => ({
              cli: epochal(project.value, "artifacts", "source", artifact.slice(0, 12), ...(files.length > 1 ? [file.path] : [])),
              curl: curl(path, files.length > 1 ? { file: file.path } : {}),
              python: python(project.value, `client.artifacts.source(${[artifact, ...(files.length > 1 ? [file.path] : [])].map(literal).join(", ")}).files[0].text`),
            })}
          />
        )}
      </header>
      <Problem problem={data.problem} retry={data.reload} />
      {!data.value && !data.problem && <Loading what="the code" />}
      {data.value && !line && <p class="quiet">No line of the code is known to define this node.</p>}
      {file && <Text file={file} line={file === defining ? (line?.line ?? null) : null} />}
    </section>
  );
}

function Text({ file, line }: { file: SourceFile; line: number | null }) {
  if (file.text === null || file.text === undefined) return <p class="quiet">{`${file.path} ${reasonOf(file)}.`}</p>;
  return <CodeView text={file.text} line={line} label={`Code of ${file.path}`} />;
}
