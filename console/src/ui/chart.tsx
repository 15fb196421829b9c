/** A time series as SVG. The pointer selects the point whose values are shown below; without it, the last one is. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { nearest, rangeOf, ticks, timeTicks } from "../model/axis";

export interface Series {
  label: string;
  unit: string;
  values: (number | null)[];
  stepped?: boolean;
}

const LEFT = 64;
const RIGHT = 12;
const TOP = 8;
const BOTTOM = 22;
const TICK_WIDTH = 84;
const TICK_HEIGHT = 34;

function timeText(seconds: number, step: number): string {
  const date = new Date(seconds * 1000);
  if (step >= 86_400) return date.toLocaleDateString("en-CA");
  return date.toLocaleTimeString("en-GB", step < 60 ? {} : { hour: "2-digit", minute: "2-digit" });
}

/** Lines between known values; a value that is not known ends a line. */
function lineOf(xs: readonly number[], ys: readonly (number | null)[], stepped: boolean): string {
  let path = "";
  ys.forEach((y, index) => {
    if (y === null) return;
    const x = xs[index]!.toFixed(1);
    const begins = index === 0 || ys[index - 1] === null;
    path += begins ? `M${x} ${y.toFixed(1)}` : stepped ? `H${x}V${y.toFixed(1)}` : `L${x} ${y.toFixed(1)}`;
  });
  return path;
}

export function Chart(props: {
  /** In order. */
  times: string[];
  series: Series[];
  label: string;
  height?: number;
  marker?: string | null;
  format?: (value: number) => string;
}) {
  const height = props.height ?? 180;
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(600);
  const [pointed, setPointed] = useState<number | null>(null);
  useEffect(() => {
    const observer = new ResizeObserver(() => setWidth(Math.max(box.current?.clientWidth ?? 600, LEFT + RIGHT + 40)));
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const times = useMemo(() => props.times.map((time) => Date.parse(time) / 1000), [props.times]);
  const [first = 0, last = 1] = [times[0], times.at(-1)];
  const [from, to] = first === last ? [first - 1, last + 1] : [first, last];
  const [low, high] = rangeOf(props.series.flatMap((series) => series.values));
  const x = (time: number) => LEFT + ((time - from) / (to - from)) * (width - LEFT - RIGHT);
  const y = (value: number) => TOP + (1 - (value - low) / (high - low)) * (height - TOP - BOTTOM);
  const text = (value: number | null | undefined) =>
    value === null || value === undefined ? "none" : (props.format?.(value) ?? new Intl.NumberFormat("en", { maximumSignificantDigits: 6 }).format(value));
  const columns = timeTicks(from, to, (width - LEFT - RIGHT) / TICK_WIDTH, -60 * new Date(from * 1000).getTimezoneOffset());
  const xs = times.map(x);
  const shown = pointed !== null && pointed < times.length ? pointed : times.length - 1;
  const marker = props.marker ? x(Date.parse(props.marker) / 1000) : null;
  return (
    <div ref={box} class="chart" role="img" aria-label={props.label}>
      <svg
        width={width}
        height={height}
        onPointerMove={(event) => setPointed(nearest(xs, event.offsetX))}
        onPointerLeave={() => setPointed(null)}
      >
        {ticks(low, high, (height - TOP - BOTTOM) / TICK_HEIGHT).map((tick) => (
          <g key={tick}>
            <line x1={LEFT} x2={width - RIGHT} y1={y(tick)} y2={y(tick)} class="grid" />
            <text x={LEFT - 8} y={y(tick) + 4} text-anchor="end">
              {text(tick)}
            </text>
          </g>
        ))}
        {columns.at.map((tick) => (
          <text key={tick} x={x(tick)} y={height - 5} text-anchor="middle">
            {timeText(tick, columns.step)}
          </text>
        ))}
        {pointed !== null && shown >= 0 && <line x1={xs[shown]} x2={xs[shown]} y1={TOP} y2={height - BOTTOM} class="cursor" />}
        {marker !== null && marker >= LEFT && marker <= width - RIGHT && <line x1={marker} x2={marker} y1={TOP} y2={height - BOTTOM} class="marker" />}
        {props.series.map((series, index) => {
          const ys = series.values.map((value) => (value === null ? null : y(value)));
          const dots = series.stepped || ys.length === 1 ? ys.map((_, at) => at) : pointed !== null ? [shown] : [];
          return (
            <g key={series.label} class={index === 0 ? "first" : "second"}>
              <path d={lineOf(xs, ys, series.stepped ?? false)} />
              {dots.map((at) => ys[at] !== null && ys[at] !== undefined && <circle key={at} cx={xs[at]} cy={ys[at]} r={at === shown && pointed !== null ? 4 : 2.5} />)}
            </g>
          );
        })}
      </svg>
      {shown >= 0 && (
        <p class="readout">
          {timeText(times[shown]!, 1)}
          {props.series.map((series, index) => (
            <span key={series.label} class={index === 0 ? "first" : "second"}>
              {series.label} {text(series.values[shown])}
              {series.unit && ` ${series.unit}`}
            </span>
          ))}
        </p>
      )}
    </div>
  );
}
