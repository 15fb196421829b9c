/** One row of the lineage: its part of the drawing, and the snapshot or run of epochs. */
import type { LineageEdge } from "../api/types";
import { clipped, count, short } from "../model/format";
import { keyOf, type Drawing, type Item } from "../model/lineage";
import { Age } from "../ui/parts";

const WIDEST = 330;

/** Distance of lanes in pixels: many lanes are narrower. */
export function laneWidth(lanes: number, narrow: boolean): number {
  return Math.max(6, Math.min(narrow ? 15 : 22, (narrow ? 90 : WIDEST) / lanes));
}

/** What a reader sees in a row, as a sentence. */
export function spoken(node: Item, edge: LineageEdge | undefined): string {
  const marks = [edge && edge.kind !== "epoch" ? edge.kind : "", ...node.savepoints.map((each) => `savepoint ${each}`), ...node.tags.map((each) => `tag ${each}`), node.pinned ? "pinned" : ""].filter(Boolean);
  return `${titleOf(node)} of ${node.application}${marks.length > 0 ? `, ${marks.join(", ")}` : ""}`;
}

export function titleOf(node: Item): string {
  return node.epochs > 1 ? `epochs ${node.first.toLocaleString("en")} to ${node.epoch.toLocaleString("en")}` : `epoch ${node.epoch.toLocaleString("en")}`;
}

export function Row(props: {
  node: Item;
  index: number;
  drawing: Drawing;
  height: number;
  narrow: boolean;
  pick: number;
  current: boolean;
  dimmed: boolean;
  choose: () => void;
  open: () => void;
}) {
  const { node, drawing, height, index } = props;
  const row = drawing.rows[index]!;
  const edge = drawing.edges.get(keyOf(node));
  const line = drawing.line(keyOf(node));
  const step = laneWidth(drawing.width, props.narrow);
  const middle = height / 2;
  const x = (lane: number) => lane * step + step / 2 + 6;
  const of = (lane: number) => {
    const { colour, left } = drawing.line(row.from[lane]);
    return `lane c${colour} ${left ? "left" : ""}`;
  };
  const kind = edge && edge.kind !== "epoch" ? edge.kind : null;
  const heads = drawing.heads.get(keyOf(node)) ?? [];
  const run = node.epochs > 1;
  const message = node.message ?? edge?.label?.message;
  return (
    <div class={`snapshot ${props.pick > 0 ? "picked" : ""} ${props.current ? "current" : ""} ${props.dimmed ? "dimmed" : ""} ${run ? "run" : ""}`} style={{ height: `${height}px` }}>
      <svg width={drawing.width * step + 12} height={height} aria-hidden="true">
        {row.passing.map((lane) => (
          <path key={lane} d={`M${x(lane)} 0V${height}`} class={of(lane)} />
        ))}
        {row.joining.map((lane) => (
          <path key={lane} class={of(lane)} d={lane === row.lane ? `M${x(lane)} 0V${middle}` : `M${x(lane)} 0C${x(lane)} ${middle * 1.15} ${x(row.lane)} ${middle * 0.35} ${x(row.lane)} ${middle}`} />
        ))}
        {row.continues && <path d={`M${x(row.lane)} ${middle}V${height}`} class={`lane c${line.colour} ${line.left ? "left" : ""}`} />}
        <Point node={node} x={x(row.lane)} y={middle} colour={line.colour} kind={kind} head={heads.length > 0} left={line.left} />
      </svg>
      <button type="button" tabIndex={-1} aria-pressed={props.pick > 0} onClick={props.choose}>
        <span class="which">
          {props.pick > 0 && <b class="order">{props.pick}</b>}
          {titleOf(node)}
          <small class={`c${line.colour}`}>
            {node.application}
            {run && !node.partial && `, ${count(node.epochs, "epoch")}`}
          </small>
        </span>
        <span class="marks">
          {heads.map((name) => (
            <i key={name} class={`mark head c${line.colour}`}>
              {name === node.application ? "head" : `head of ${name}`}
            </i>
          ))}
          {drawing.tips[index] && line.left && <i class="mark kind">left by a rollback</i>}
          {kind && <i class="mark kind">{kind}</i>}
          {node.changes
            .filter((change) => change.kind !== kind)
            .map((change, position) => (
              <i key={position} class="mark kind">
                {change.kind}
              </i>
            ))}
          {node.savepoints.map((each) => (
            <i key={each} class="mark savepoint" title={`savepoint ${each}`}>
              {each}
            </i>
          ))}
          {node.tags.map((each) => (
            <i key={each} class="mark tag" title={`tag ${each}`}>
              {each}
            </i>
          ))}
          {node.pinned && <i class="mark pinned">pinned</i>}
          {node.state !== "committed" && <i class="mark kind">{node.state}</i>}
          {node.collected && !run && <i class="mark">expired</i>}
          {message && <bdi class="quiet">{clipped(message, 160)}</bdi>}
        </span>
        <span class="rows number">{node.partial ? "" : `${short(node.counts.rows_in)} rows in`}</span>
        <span class="when">
          {node.committed_at ? <Age at={node.committed_at} /> : "prepared"}
          {edge?.label?.by && <small>{edge.label.by}</small>}
        </span>
      </button>
      {run && (
        <button type="button" tabIndex={-1} class="openrun" title="Show these epochs one by one" onClick={props.open}>
          Open<span class="hidden"> {titleOf(node)}</span>
        </button>
      )}
    </div>
  );
}

function Point(props: { node: Item; x: number; y: number; colour: number; kind: string | null; head: boolean; left: boolean }) {
  const { node, x, y } = props;
  const look = `point c${props.colour} ${node.collected || props.left ? "hollow" : ""}`;
  if (node.epochs > 1) {
    return (
      <g class={`c${props.colour}`}>
        <rect x={x - 5} y={y - 11} width={10} height={22} rx={5} class="point capsule" />
        {[-5, 0, 5].map((shift) => (
          <circle key={shift} cx={x} cy={y + shift} r={1.4} class="dot" />
        ))}
      </g>
    );
  }
  if (node.savepoints.length > 0) return <rect x={x - 6} y={y - 6} width={12} height={12} rx={2} class={look} transform={`rotate(45 ${x} ${y})`} />;
  if (props.head) {
    return (
      <g class={`c${props.colour}`}>
        <circle cx={x} cy={y} r={8.5} class="halo" />
        <circle cx={x} cy={y} r={5.5} class="point" />
      </g>
    );
  }
  return <circle cx={x} cy={y} r={props.kind ? 6.5 : 4.8} class={look} />;
}
