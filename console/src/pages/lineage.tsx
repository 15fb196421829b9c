/** The tree of snapshots as git draws it: branches of applications, savepoints, forks, rollbacks. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { get, post, remove, resource } from "../api/client";
import { may, project } from "../api/session";
import type { Lineage, LineageEdge, LineageNode } from "../api/types";
import { curl, epochal, literal, python } from "../model/commands";
import { bytes, clipped, count, short } from "../model/format";
import { lanesOf, widthOf, type LaneRow } from "../model/lanes";
import { address, choose, link } from "../router";
import { useData } from "../ui/data";
import { Age, CopyAs, Loading, Problem, say, VirtualList } from "../ui/parts";
import type { View } from "./application";
import { DiffView } from "./diff";
import { ForkDialog, RollbackDialog } from "./restore";

interface Zoom {
  label: string;
  fold: boolean;
  row: number;
}
const ZOOMS: Zoom[] = [
  { label: "overview", fold: true, row: 26 },
  { label: "folded", fold: true, row: 46 },
  { label: "every epoch", fold: false, row: 46 },
];
const LANE = 22;
const PAGE = 500;
const COLOURS = 6;

const keyOf = (key: { branch: string; epoch: number }) => `${key.branch}/${key.epoch}`;

/** Names a snapshot in the address: `12`, or `strict:12` of another application. */
const nameOf = (node: LineageNode, own: string) => (node.application === own ? String(node.epoch) : `${node.application}:${node.epoch}`);

export default function LineagePage({ application, reload }: View) {
  const name = application.name;
  const path = resource(project.value, "applications", name, "lineage");
  const level = Math.min(2, Math.max(0, Number(address.value.query.get("zoom") ?? 1)));
  const zoom = ZOOMS[level]!;
  const [pages, setPages] = useState(1);
  const data = useData(
    `lineage ${path} ${zoom.fold} ${pages}`,
    async (signal) => {
      let answer = await get<Lineage>(path, { fold: zoom.fold, slices: false, limit: PAGE }, signal);
      for (let page = 1; page < pages && answer.next_cursor; page += 1) {
        const next = await get<Lineage>(path, { fold: zoom.fold, slices: false, limit: PAGE, cursor: answer.next_cursor }, signal);
        answer = { ...answer, nodes: [...answer.nodes, ...next.nodes], edges: [...answer.edges, ...next.edges], next_cursor: next.next_cursor };
      }
      return answer;
    },
    (event) => event.kind === "savepoint" || event.kind === "operation" || (event.kind === "epoch" && event.data.state === "committed"),
  );
  const [kept, setKept] = useState<Lineage | null>(null);
  useEffect(() => {
    if (data.value) setKept(data.value);
  }, [data.value]);
  const lineage = data.value ?? kept;
  const [words, setWords] = useState("");
  const [cursor, setCursor] = useState(-1);
  const reveal = useMemo(() => signal(-1), []);
  const [dialog, setDialog] = useState<{ kind: "fork" | "rollback"; node: LineageNode } | null>(null);
  const nodes = lineage?.nodes ?? [];
  const drawing = useMemo(() => drawn(lineage), [lineage]);
  const picked = address.value.query.getAll("pick").flatMap((each) => each.split(",")).filter(Boolean).slice(0, 2);
  const isPicked = (node: LineageNode) => picked.includes(nameOf(node, name));
  const pick = (node: LineageNode) => {
    const own = nameOf(node, name);
    const next = picked.includes(own) ? picked.filter((each) => each !== own) : [...picked.slice(-1), own];
    choose({ pick: next.length > 0 ? next.join(",") : null });
  };
  const matching = nodes.flatMap((node, index) => (words && matches(node, drawing.kinds.get(keyOf(node)), words) ? [index] : []));
  const find = (step: number) => {
    if (matching.length === 0) return;
    const next = step > 0 ? (matching.find((index) => index > cursor) ?? matching[0]!) : ([...matching].reverse().find((index) => index < cursor) ?? matching.at(-1)!);
    move(next);
  };
  const move = (index: number) => {
    const next = Math.max(0, Math.min(nodes.length - 1, index));
    setCursor(next);
    reveal.value = -1;
    reveal.value = next;
  };
  const pickedNodes = picked.map((each) => nodes.find((node) => nameOf(node, name) === each)).filter((node) => node !== undefined);
  const one = pickedNodes.length === 1 ? pickedNodes[0]! : null;
  return (
    <>
      <header class="title tools">
        <input
          type="search"
          data-search
          aria-label="Find snapshots"
          placeholder="Epoch, tag, savepoint, kind"
          value={words}
          onInput={(event) => {
            setWords(event.currentTarget.value);
            setCursor(-1);
          }}
          onKeyDown={(event) => {
            if (event.key === "Enter") {
              event.preventDefault();
              find(event.shiftKey ? -1 : 1);
            }
          }}
        />
        {words && <span class="quiet">{count(matching.length, "snapshot")} found</span>}
        <span class="push" />
        <div class="group" role="group" aria-label="Zoom">
          <button type="button" aria-label="Zoom out" disabled={level === 0} onClick={() => choose({ zoom: String(level - 1) })}>
            −
          </button>
          <span class="level">{zoom.label}</span>
          <button type="button" aria-label="Zoom in" disabled={level === 2} onClick={() => choose({ zoom: String(level + 1) })}>
            +
          </button>
        </div>
        <CopyAs
          commands={() => ({
            cli: picked.length === 2 ? epochal(project.value, "diff", name, ...picked) : epochal(project.value, "lineage", name),
            curl: curl(path, { fold: zoom.fold }),
            python: python(project.value, `client.application(${literal(name)}).${picked.length === 2 ? `snapshots.diff(${picked.map(literal).join(", ")})` : "lineage()"}`),
          })}
        />
      </header>
      <Problem problem={data.problem} retry={data.reload} />
      {!lineage && !data.problem && <Loading what="the lineage" />}
      {lineage && nodes.length === 0 && <p class="empty">No snapshot yet: the first epoch makes one.</p>}
      {nodes.length > 0 && (
        <section class="card flush" aria-label="Snapshots">
          <VirtualList
            class={`lineage ${level === 0 ? "dense" : ""}`}
            label="Snapshots, newest first. Arrow keys move, space picks a snapshot."
            count={nodes.length}
            rowHeight={zoom.row}
            reveal={reveal}
            onEnd={() => lineage?.next_cursor && data.value && setPages(pages + 1)}
            onKeyDown={(event) => {
              if (event.target !== event.currentTarget) return;
              const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 };
              const step = steps[event.key];
              if (step !== undefined) {
                event.preventDefault();
                move(cursor + step);
              } else if ((event.key === " " || event.key === "Enter") && nodes[cursor]) {
                event.preventDefault();
                pick(nodes[cursor]!);
              } else if (event.key === "n" || event.key === "N") find(event.key === "n" ? 1 : -1);
            }}
            render={(index) => {
              const node = nodes[index]!;
              return (
                <Row
                  key={keyOf(node)}
                  node={node}
                  edge={drawing.edges.get(keyOf(node))}
                  row={drawing.rows[index]!}
                  colours={drawing.colours}
                  below={drawing.rows[index + 1]}
                  lanes={drawing.width}
                  height={zoom.row}
                  own={name}
                  head={lineage?.head ? keyOf(lineage.head) === keyOf(node) : false}
                  picked={isPicked(node)}
                  current={index === cursor}
                  dimmed={words !== "" && !matching.includes(index)}
                  pick={() => {
                    setCursor(index);
                    pick(node);
                  }}
                />
              );
            }}
          />
        </section>
      )}
      {nodes.length > 0 && picked.length === 0 && <p class="quiet caption">Pick one snapshot to fork or roll back to it, two to see what differs.</p>}
      {one && (
        <section class="card picked" aria-labelledby="picked-title">
          <header class="title">
            <h2 id="picked-title">
              {one.application}, epoch {one.epoch}
            </h2>
            <span class="push" />
            {!one.collected && may("author") && (
              <button type="button" onClick={() => setDialog({ kind: "fork", node: one })}>
                Fork from here
              </button>
            )}
            {!one.collected && may("operator") && one.application === name && (
              <button type="button" onClick={() => setDialog({ kind: "rollback", node: one })}>
                Roll back to here
              </button>
            )}
            {may("operator") && !one.collected && one.application === name && <Pin name={name} node={one} done={data.reload} />}
            <a class="button" href={`${link("applications", one.application, "state")}?epoch=${one.epoch}`}>
              State as of this epoch
            </a>
          </header>
          <p class="quiet">
            {count(one.counts.rows_in, "row")} in, {count(one.counts.rows_out, "row")} out, {count(one.counts.state_rows, "state row")} changed
            ({bytes(one.counts.state_bytes)}), code <code>{one.filename}</code> version {one.version}
            {one.epochs > 1 && `; stands for epochs ${one.first} to ${one.epoch}`}. Pick another snapshot to compare them.
          </p>
          {one.message && (
            <p>
              <bdi>{one.message}</bdi>
            </p>
          )}
        </section>
      )}
      {picked.length === 2 && <DiffView name={name} from={picked[0]!} to={picked[1]!} clear={() => choose({ pick: null })} />}
      {dialog?.kind === "fork" && <ForkDialog node={dialog.node} close={() => setDialog(null)} />}
      {dialog?.kind === "rollback" && (
        <RollbackDialog
          application={application}
          node={dialog.node}
          close={() => {
            setDialog(null);
            reload();
          }}
        />
      )}
    </>
  );
}

function Pin({ name, node, done }: { name: string; node: LineageNode; done: () => void }) {
  const path = resource(project.value, "applications", name, "snapshots", String(node.epoch), "pin");
  const change = async () => {
    try {
      if (node.pinned) await remove(path);
      else await post(path);
      done();
    } catch (error) {
      say((error as Error).message);
    }
  };
  return (
    <button type="button" onClick={() => void change()} title={node.pinned ? "Let the snapshot expire" : "Keep the snapshot from expiring"}>
      {node.pinned ? "Unpin" : "Pin"}
    </button>
  );
}

function drawn(lineage: Lineage | null) {
  const nodes = lineage?.nodes ?? [];
  const edges = new Map((lineage?.edges ?? []).map((edge) => [keyOf(edge.to), edge]));
  const rows = lanesOf(nodes.map((node) => ({ key: keyOf(node), parents: edges.has(keyOf(node)) ? [keyOf(edges.get(keyOf(node))!.from)] : [] })));
  const branches = [...new Set(nodes.map((node) => node.branch))].sort();
  // Each lane has, in each row, the colour of the branch that last had a node in it.
  const colours = new Map<number, number>();
  const byRow: Map<number, number>[] = [];
  rows.forEach((row, index) => {
    colours.set(row.lane, branches.indexOf(nodes[index]!.branch) % COLOURS);
    byRow.push(new Map(colours));
  });
  return {
    rows: rows.map((row, index) => ({ ...row, colours: byRow[index]!, above: byRow[index - 1] ?? new Map<number, number>() })),
    edges,
    width: widthOf(rows),
    colours: new Map(branches.map((branch, index) => [branch, index % COLOURS])),
    kinds: new Map([...edges].map(([key, edge]) => [key, edge.kind])),
  };
}

function matches(node: LineageNode, kind: string | undefined, words: string): boolean {
  const texts = [String(node.epoch), node.application, node.branch, node.message ?? "", kind ?? "", `version ${node.version}`, node.filename, node.artifact, ...node.savepoints, ...node.tags, ...node.changes.map((change) => change.kind)];
  const number = Number(words);
  if (Number.isInteger(number) && node.first <= number && number <= node.epoch) return true;
  return texts.some((text) => text.toLowerCase().includes(words.toLowerCase()));
}

type DrawnRow = LaneRow & { colours: Map<number, number>; above: Map<number, number> };

function Row(props: {
  node: LineageNode;
  edge: LineageEdge | undefined;
  row: DrawnRow;
  below: DrawnRow | undefined;
  colours: Map<string, number>;
  lanes: number;
  height: number;
  own: string;
  head: boolean;
  picked: boolean;
  current: boolean;
  dimmed: boolean;
  pick: () => void;
}) {
  const { node, edge, row, height } = props;
  const middle = height / 2;
  const x = (lane: number) => lane * LANE + LANE / 2 + 4;
  const colour = props.colours.get(node.branch) ?? 0;
  const special = edge && edge.kind !== "epoch";
  return (
    <div class={`snapshot ${props.picked ? "picked" : ""} ${props.current ? "current" : ""} ${props.dimmed ? "dimmed" : ""}`} style={{ height: `${height}px` }}>
      <svg width={props.lanes * LANE + 8} height={height} aria-hidden="true">
        {row.passing.map((lane) => (
          <path key={lane} d={`M${x(lane)} 0V${height}`} class={`lane c${row.above.get(lane) ?? 0}`} />
        ))}
        {row.joining.map((lane) => (
          <path
            key={lane}
            d={lane === row.lane ? `M${x(lane)} 0V${middle}` : `M${x(lane)} 0C${x(lane)} ${middle} ${x(row.lane)} ${middle * 0.4} ${x(row.lane)} ${middle}`}
            class={`lane c${row.above.get(lane) ?? colour}`}
          />
        ))}
        {row.continues && <path d={`M${x(row.lane)} ${middle}V${height}`} class={`lane c${colour}`} />}
        {node.epochs > 1 ? (
          <rect x={x(row.lane) - 4} y={middle - 8} width={8} height={16} rx={4} class={`point c${colour} ${node.collected ? "collected" : ""}`} />
        ) : (
          <circle cx={x(row.lane)} cy={middle} r={special || props.head ? 6 : 4.5} class={`point c${colour} ${node.collected ? "collected" : ""}`} />
        )}
      </svg>
      <button type="button" tabIndex={-1} aria-pressed={props.picked} onClick={props.pick}>
        <span class="which">
          {node.epochs > 1 ? `epochs ${node.first} to ${node.epoch}` : `epoch ${node.epoch}`}
          <small>{node.application}</small>
        </span>
        <span class="marks">
          {props.head && <i class="mark head">head</i>}
          {special && <i class="mark kind">{edge.kind}</i>}
          {node.changes.filter((change) => change.kind !== edge?.kind).map((change, index) => <i key={index} class="mark kind">{change.kind}</i>)}
          {node.savepoints.map((each) => <i key={each} class="mark savepoint">{each}</i>)}
          {node.tags.map((each) => <i key={each} class="mark">{each}</i>)}
          {node.pinned && <i class="mark">pinned</i>}
          {node.state !== "committed" && <i class="mark kind">{node.state}</i>}
          {node.collected && <i class="mark">files deleted</i>}
          {(node.message ?? edge?.label?.message) && <bdi class="quiet">{clipped(node.message ?? edge!.label!.message!, 80)}</bdi>}
        </span>
        <span class="rows number">{short(node.counts.rows_in)} rows in</span>
        <span class="when">
          {node.committed_at ? <Age at={node.committed_at} /> : "prepared"}
          {edge?.label?.by && <small>{edge.label.by}</small>}
        </span>
      </button>
    </div>
  );
}
