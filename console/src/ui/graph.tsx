/** The graph of a version, laid out by dagre and drawn as SVG. Loaded with the first graph. */
import dagre from "@dagrejs/dagre";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Graph, GraphNode } from "../api/types";
import { clipped } from "../model/format";
import { hasRate, isOperator, type NodeFigures } from "../model/graph";

const SMALL = new Set(["transform", "side", "close"]);
const ONE_LINE = new Set(["watermark", "static", "feedback"]);
const GAP = 14;
const LABEL = { width: 62, height: 14 };
/** Smaller texts cannot be read: a wider graph is scrolled. */
const LEAST_SCALE = 0.66;

/** Widths of nodes, and the lengths of their texts in characters. `tight`: for graphs that are wider than the page. */
interface Sizes {
  node: number;
  name: number;
  fact: number;
  small: number;
  gap: number;
}
const LOOSE: Sizes = { node: 172, name: 19, fact: 26, small: 21, gap: 22 };
const TIGHT: Sizes = { node: 154, name: 16, fact: 24, small: 16, gap: 10 };
const ONE_LINE_LESS = { width: 22, name: 2 };

function sizeOf(node: GraphNode, sizes: Sizes): { width: number; height: number } {
  if (SMALL.has(node.type)) return { width: 26 + 6.2 * Math.min(sizes.small, [...node.name].length), height: 34 };
  return ONE_LINE.has(node.type) ? { width: sizes.node - ONE_LINE_LESS.width, height: 66 } : { width: sizes.node, height: 84 };
}

export default function GraphView(props: {
  graph: Graph;
  figures: (node: GraphNode) => NodeFigures;
  edge: (from: GraphNode, to: GraphNode) => string;
  selected: number | null;
  select: (id: number | null) => void;
  label: string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(Math.min(innerWidth - 82, 1198));
  useEffect(() => {
    const observer = new ResizeObserver(() => setWidth(box.current?.clientWidth ?? 1000));
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const narrow = width < 640;
  const loose = useMemo(() => laidOut(props.graph, narrow, LOOSE), [props.graph, narrow]);
  const wide = loose.width > width;
  const drawing = useMemo(() => (wide ? laidOut(props.graph, narrow, TIGHT) : loose), [loose, wide]);
  const sizes = wide ? TIGHT : LOOSE;
  const byId = new Map(props.graph.nodes.map((node) => [node.id, node]));
  return (
    <div ref={box} class="graph" tabIndex={0} role="group" aria-label={props.label}>
      <svg
        viewBox={`0 0 ${drawing.width} ${drawing.height}`}
        style={{ width: `${drawing.width}px`, minWidth: `${drawing.width * LEAST_SCALE}px` }}
      >
        <defs>
          <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
            <path d="M0 0L8 4L0 8z" class="arrow" />
          </marker>
        </defs>
        {drawing.edges.map((edge) => {
          const text = props.edge(byId.get(edge.from)!, byId.get(edge.to)!);
          return (
            <g key={`${edge.from}-${edge.to}`} class="edge">
              <path d={edge.path} marker-end="url(#arrow)" />
              {text && (
                <>
                  <rect x={edge.x - LABEL.width / 2} y={edge.y - LABEL.height / 2} {...LABEL} />
                  <text x={edge.x} y={edge.y + 4} text-anchor="middle">
                    {text}
                  </text>
                </>
              )}
            </g>
          );
        })}
        {drawing.nodes.map(({ node, x, y, width, height }) => {
          const figures = props.figures(node);
          const small = SMALL.has(node.type);
          const [first = "", second = ""] = figures.waits ? [figures.lines[0], figures.waits] : figures.lines.filter(Boolean);
          const open = () => props.select(props.selected === node.id ? null : node.id);
          return (
            <g
              key={node.id}
              class={`node ${node.type} ${kindOf(node)} ${figures.slowest ? "hot" : ""} ${figures.waits ? "waits" : ""} ${props.selected === node.id ? "selected" : ""}`}
              transform={`translate(${x - width / 2},${y - height / 2})`}
              data-node={node.id}
              role="button"
              // Attributes of SVG elements are case-sensitive: `tabIndex` would not make it focusable.
              tabindex={0}
              aria-pressed={props.selected === node.id}
              aria-description={`${node.type} ${node.name}`}
              onClick={open}
              onKeyDown={(event) => {
                if (event.key === "Enter" || event.key === " ") {
                  event.preventDefault();
                  open();
                }
              }}
            >
              <rect width={width} height={height} rx={small ? height / 2 : 8} />
              {small ? (
                <text x={width / 2} y={height / 2 + 4} text-anchor="middle" class="label">
                  {clipped(node.name, sizes.small)}
                </text>
              ) : (
                <>
                  <text x={GAP} y={20} class="type">
                    {node.type}
                    {figures.slowest && <tspan class="mark"> · slowest</tspan>}{" "}
                  </text>
                  <text x={GAP} y={38} class="label strong">
                    {clipped(node.name, sizes.name - (ONE_LINE.has(node.type) ? ONE_LINE_LESS.name : 0))}{" "}
                  </text>
                  <text x={GAP} y={56} class="fact">
                    {clipped(first, sizes.fact)}{" "}
                  </text>
                  <text x={GAP} y={72} class={figures.waits ? "fact bad" : "fact"}>
                    {clipped(second, sizes.fact)}
                  </text>
                </>
              )}
            </g>
          );
        })}
      </svg>
    </div>
  );
}

export function kindOf(node: GraphNode): "source" | "sink" | "plain" | "stateful" {
  if (node.type === "source" || node.type === "static") return "source";
  if (node.type === "sink") return "sink";
  return isOperator(node) ? "stateful" : "plain";
}

function laidOut(graph: Graph, narrow: boolean, sizes: Sizes) {
  const layout = new dagre.graphlib.Graph();
  layout.setGraph({ rankdir: narrow ? "TB" : "LR", nodesep: 26, ranksep: narrow ? 26 : sizes.gap, marginx: 6, marginy: 10 });
  layout.setDefaultEdgeLabel(() => ({}));
  for (const node of graph.nodes) layout.setNode(String(node.id), sizeOf(node, sizes));
  for (const node of graph.nodes) {
    for (const input of node.inputs ?? []) {
      const from = graph.nodes[input];
      layout.setEdge(String(input), String(node.id), from && hasRate(from, node) ? { ...LABEL, labelpos: "c" } : {});
    }
  }
  dagre.layout(layout);
  const size = layout.graph();
  return {
    width: Math.ceil(size.width ?? 0),
    height: Math.ceil(size.height ?? 0),
    nodes: graph.nodes.map((node) => ({ node, ...(layout.node(String(node.id)) as { x: number; y: number; width: number; height: number }) })),
    edges: layout.edges().map(({ v, w }) => {
      const { points, x, y } = layout.edge(v, w) as { points: { x: number; y: number }[]; x?: number; y?: number };
      const middle = points[Math.floor(points.length / 2)] ?? { x: 0, y: 0 };
      return { from: Number(v), to: Number(w), path: curve(points), x: x ?? middle.x, y: y ?? middle.y };
    }),
  };
}

/** A smooth line through dagre's points. */
function curve(points: { x: number; y: number }[]): string {
  const [first, ...rest] = points;
  if (!first) return "";
  let path = `M${first.x} ${first.y}`;
  rest.forEach((point, index) => {
    const next = rest[index + 1];
    path += next ? `Q${point.x} ${point.y} ${(point.x + next.x) / 2} ${(point.y + next.y) / 2}` : `L${point.x} ${point.y}`;
  });
  return path;
}
