/** The graph of a version, laid out by dagre and drawn as SVG. Loaded with the first graph. */
import dagre from "@dagrejs/dagre";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Graph, GraphNode } from "../api/types";
import { clipped } from "../model/format";

export interface NodeFacts {
  /** Second line of a node, such as `1,200 rows/s`. */
  line: string;
  /** Third line, such as the size of its state. */
  more: string;
  hot: boolean;
}

const SMALL = new Set(["transform", "watermark"]);
const GAP = 14;

function sizeOf(node: GraphNode): { width: number; height: number } {
  return SMALL.has(node.type) ? { width: 150, height: 34 } : { width: 172, height: 66 };
}

export default function GraphView(props: {
  graph: Graph;
  facts: (node: GraphNode) => NodeFacts;
  edge: (from: GraphNode, to: GraphNode) => string;
  selected: number | null;
  select: (id: number | null) => void;
  label: string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [narrow, setNarrow] = useState(innerWidth < 700);
  useEffect(() => {
    const observer = new ResizeObserver(() => setNarrow((box.current?.clientWidth ?? 1000) < 640));
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const drawing = useMemo(() => laidOut(props.graph, narrow), [props.graph, narrow]);
  const byId = new Map(props.graph.nodes.map((node) => [node.id, node]));
  return (
    <div ref={box} class="graph" tabIndex={0} role="group" aria-label={props.label}>
      <svg
        viewBox={`0 0 ${drawing.width} ${drawing.height}`}
        style={{ width: `${drawing.width}px`, minWidth: `${drawing.width * (narrow ? 0.62 : 0.72)}px` }}
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
                <text x={edge.x} y={edge.y - 6} text-anchor="middle">
                  {text}
                </text>
              )}
            </g>
          );
        })}
        {drawing.nodes.map(({ node, x, y, width, height }) => {
          const facts = props.facts(node);
          const small = SMALL.has(node.type);
          const open = () => props.select(props.selected === node.id ? null : node.id);
          return (
            <g
              key={node.id}
              class={`node ${node.type} ${kindOf(node)} ${facts.hot ? "hot" : ""} ${props.selected === node.id ? "selected" : ""}`}
              transform={`translate(${x - width / 2},${y - height / 2})`}
              role="button"
              tabIndex={0}
              aria-pressed={props.selected === node.id}
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
                  {clipped(node.name, 21)}
                </text>
              ) : (
                <>
                  <text x={GAP} y={20} class="type">
                    {node.type}
                  </text>
                  <text x={GAP} y={38} class="label strong">
                    {clipped(node.name, 19)}
                  </text>
                  <text x={GAP} y={55} class="fact">
                    {clipped([facts.line, facts.more].filter(Boolean).join(" · "), 28)}
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
  return SMALL.has(node.type) ? "plain" : "stateful";
}

function laidOut(graph: Graph, narrow: boolean) {
  const layout = new dagre.graphlib.Graph();
  layout.setGraph({ rankdir: narrow ? "TB" : "LR", nodesep: 26, ranksep: narrow ? 34 : 62, marginx: 6, marginy: 10 });
  layout.setDefaultEdgeLabel(() => ({}));
  for (const node of graph.nodes) layout.setNode(String(node.id), sizeOf(node));
  for (const node of graph.nodes) for (const input of node.inputs ?? []) layout.setEdge(String(input), String(node.id));
  dagre.layout(layout);
  const size = layout.graph();
  return {
    width: Math.ceil(size.width ?? 0),
    height: Math.ceil(size.height ?? 0),
    nodes: graph.nodes.map((node) => ({ node, ...(layout.node(String(node.id)) as { x: number; y: number; width: number; height: number }) })),
    edges: layout.edges().map(({ v, w }) => {
      const points = (layout.edge(v, w) as { points: { x: number; y: number }[] }).points;
      const middle = points[Math.floor(points.length / 2)] ?? { x: 0, y: 0 };
      return { from: Number(v), to: Number(w), path: curve(points), x: middle.x, y: middle.y };
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
