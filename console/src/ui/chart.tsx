/** A time series, drawn by uPlot, which is loaded when the first chart is shown. */
import { useEffect, useRef } from "preact/hooks";
import type uPlot from "uplot";
import { theme } from "./theme";

export interface Series {
  label: string;
  unit: string;
  values: (number | null)[];
  stepped?: boolean;
}

function timeText(seconds: number, step: number): string {
  const date = new Date(seconds * 1000);
  if (step >= 86_400) return date.toLocaleDateString("en-CA");
  return date.toLocaleTimeString("en-GB", step < 60 ? {} : { hour: "2-digit", minute: "2-digit" });
}

export function Chart(props: {
  times: string[];
  series: Series[];
  label: string;
  height?: number;
  marker?: string | null;
  format?: (value: number) => string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const data = (): uPlot.AlignedData => [
    latest.current.times.map((time) => Date.parse(time) / 1000),
    ...latest.current.series.map((series) => series.values),
  ];
  const shape = props.series.map((series) => series.label + series.unit).join("|");
  useEffect(() => {
    let gone = false;
    let observer: ResizeObserver | undefined;
    void import("uplot").then(({ default: Plot }) => {
      const element = box.current;
      if (gone || !element) return;
      const style = getComputedStyle(document.documentElement);
      const colour = (name: string) => style.getPropertyValue(name).trim();
      const text = (value: number | null) =>
        value === null ? "" : (latest.current.format?.(value) ?? new Intl.NumberFormat("en", { maximumSignificantDigits: 6 }).format(value));
      const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      const made = new Plot(
        {
          width: element.clientWidth,
          height: latest.current.height ?? 180,
          cursor: { y: false },
          scales: { y: { range: (_, low, high) => (low === high ? [low - 1, high + 1] : [Math.min(low, low > 0 && low < high / 3 ? 0 : low), high]) } },
          axes: [{ ...axis, values: (_, ticks, __, ___, step) => ticks.map((tick) => timeText(tick, step)) }, { ...axis, size: 64, values: (_, ticks) => ticks.map(text) }],
          series: [
            { label: "Time", value: (_, tick: number | null) => (tick === null ? "" : timeText(tick, 1)) },
            ...latest.current.series.map((series, index) => ({
              label: `${series.label}${series.unit ? `, ${series.unit}` : ""}`,
              stroke: colour(index === 0 ? "--accent" : "--second"),
              width: 1.5,
              points: { show: series.stepped ?? false, size: 5 },
              value: (_: uPlot, value: number | null) => text(value),
              ...(series.stepped ? { paths: Plot.paths.stepped!({ align: 1 }) } : {}),
            })),
          ],
          hooks: {
            draw: [
              (drawn) => {
                const at = latest.current.marker;
                if (!at) return;
                const x = drawn.valToPos(Date.parse(at) / 1000, "x", true);
                const { left, width, top, height } = drawn.bbox;
                if (x < left || x > left + width) return;
                drawn.ctx.strokeStyle = colour("--second");
                drawn.ctx.lineWidth = 2;
                drawn.ctx.beginPath();
                drawn.ctx.moveTo(x, top);
                drawn.ctx.lineTo(x, top + height);
                drawn.ctx.stroke();
              },
            ],
          },
        },
        data(),
        element,
      );
      plot.current = made;
      observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: latest.current.height ?? 180 }));
      observer.observe(element);
    });
    return () => {
      gone = true;
      observer?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, theme.value]);
  useEffect(() => {
    plot.current?.setData(data());
  }, [props.times, props.marker]);
  return <div ref={box} class="chart" role="img" aria-label={props.label} style={{ minHeight: `${(props.height ?? 180) + 30}px` }} />;
}
