/** Rows and bytes of each key group as a strip that shows skew. */
import { useRef, useState } from "preact/hooks";
import { get, resource } from "../../api/client";
import { project } from "../../api/session";
import type { KeyGroupSizes, StateTable } from "../../api/types";
import { curl, epochal, literal, python } from "../../model/commands";
import { bytes, count, short } from "../../model/format";
import { barsOf, skewOf, step, type Bar } from "../../model/groups";
import { choose } from "../../router";
import { useData } from "../../ui/data";
import { CopyAs, Loading, Problem } from "../../ui/parts";
import { useKept } from "./reading";

const MOST_BARS = 512;
const LISTED = 200;
const HEIGHT = 64;

export function KeyGroups({ name, table, epoch }: { name: string; table: StateTable; epoch: string | null }) {
  const at = epoch ?? "head";
  const path = resource(project.value, "applications", name, "snapshots", at, "key-groups", table.table);
  // Not after every epoch: the sizes are read from the footers of all files of the table.
  const data = useData(`groups ${path}`, (signal) => get<KeyGroupSizes>(path, {}, signal));
  const kept = useKept(data);
  const [by, setBy] = useState<"rows" | "bytes">("rows");
  const sizes = kept.value;
  return (
    <section class="card" aria-labelledby="groups-title">
      <header class="title">
        <h2 id="groups-title">
          Key groups <small>{sizes ? `${count(sizes.rows.length, "key group")} as of epoch ${sizes.epoch}` : ""}</small>
        </h2>
        <span class="push" />
        <label class="choice">
          <span>Show</span>
          <select value={by} onChange={(event) => setBy(event.currentTarget.value as "rows" | "bytes")}>
            <option value="rows">rows</option>
            <option value="bytes">bytes</option>
          </select>
        </label>
        {epoch === null && (
          <button type="button" onClick={data.reload}>
            Read again<span class="hidden"> the key groups</span>
          </button>
        )}
        <CopyAs
          commands={() => ({
            cli: epochal(project.value, "key-groups", ...(epoch === null ? [] : ["--at", epoch]), name, table.table),
            curl: curl(path),
            python: python(project.value, `client.application(${literal(name)}).snapshots.key_groups(${epoch === null ? '"head"' : Number(epoch)}, ${literal(table.table)})`),
          })}
        />
      </header>
      <Problem problem={data.problem?.status === 404 ? null : data.problem} retry={data.reload} />
      {data.problem?.status === 404 && <p class="empty">{data.problem.message}</p>}
      {!sizes && !data.problem && <Loading what="sizes of key groups" />}
      {sizes && <Strip key={`${table.table} ${by}`} sizes={sizes} by={by} table={table} />}
    </section>
  );
}

function Strip({ sizes, by, table }: { sizes: KeyGroupSizes; by: "rows" | "bytes"; table: StateTable }) {
  const values = by === "rows" ? sizes.rows : sizes.bytes;
  const skew = skewOf(values);
  const bars = barsOf(sizes.rows, sizes.bytes, by, MOST_BARS);
  const [current, setCurrent] = useState(Math.max(0, bars.findIndex((bar) => bar.first <= skew.group && skew.group <= bar.last)));
  const box = useRef<HTMLDivElement>(null);
  const bar = bars[Math.min(current, bars.length - 1)];
  if (!bar) return <p class="empty">The table has no key groups.</p>;
  const size = (value: number) => (by === "rows" ? count(value, "row") : bytes(value));
  const listable = table.queryable && table.key.length === 1 && table.key[0]!.name === "_group" && table.scope !== "broadcast" && bar.first === bar.last && bar.rows > 0;
  const pick = (event: PointerEvent) => {
    const area = box.current?.getBoundingClientRect();
    if (area && area.width > 0) setCurrent(Math.max(0, Math.min(bars.length - 1, Math.floor(((event.clientX - area.left) / area.width) * bars.length))));
  };
  const move = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 16, PageDown: -16, Home: -bars.length, End: bars.length };
    const by = steps[event.key];
    if (by === undefined) return;
    event.preventDefault();
    setCurrent((before) => Math.max(0, Math.min(bars.length - 1, before + by)));
  };
  return (
    <>
      <p>
        {skew.greatest === 0 ? (
          "The files of the table have no rows."
        ) : (
          <>
            The greatest key group, {skew.group}, has {size(skew.greatest)}
            {skew.ratio === null ? `; more than half of the key groups are empty.` : `: ${ratioText(skew.ratio)} times the median, ${size(skew.median)}.`}
            {skew.empty > 0 && skew.ratio !== null && ` ${count(skew.empty, "key group")} ${skew.empty === 1 ? "is" : "are"} empty.`}
          </>
        )}
        {sizes.files_read < sizes.files && ` ${count(sizes.files_read, "file")} of ${sizes.files} were counted.`}
      </p>
      <div
        ref={box}
        class="strip"
        role="slider"
        tabIndex={0}
        aria-label={`Key groups by ${by}`}
        aria-valuemin={0}
        aria-valuemax={bars.length - 1}
        aria-valuenow={current}
        aria-valuetext={barText(bar, sizes)}
        onPointerMove={pick}
        onPointerDown={pick}
        onKeyDown={move}
      >
        <svg viewBox={`0 0 ${bars.length} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
          {bars.map((each, index) => {
            const value = each[by];
            const height = value === 0 ? 1 : Math.max(3, (value / skew.greatest) * HEIGHT);
            return <rect key={each.first} class={`h${step(value, skew.greatest)} ${index === current ? "current" : ""}`} x={index} y={HEIGHT - height} width={bars.length > 160 ? 1 : 0.86} height={height} />;
          })}
        </svg>
      </div>
      <p class="strip-text" role="status">
        {barText(bar, sizes)}{" "}
        {listable && (
          <button type="button" class="inline" onClick={() => choose({}, { key: String(bar.first) })}>
            Show its rows
          </button>
        )}
      </p>
      <details>
        <summary>Key groups as a table</summary>
        <GroupTable sizes={sizes} values={values} />
      </details>
      <p class="quiet caption">Sizes are those of the files: rows that were deleted or replaced since the last compaction count, too. Bytes are compressed.</p>
    </>
  );
}

function ratioText(ratio: number): string {
  return ratio < 10 ? ratio.toFixed(1) : short(Math.round(ratio));
}

function barText(bar: Bar, sizes: KeyGroupSizes): string {
  const what = bar.first === bar.last ? `Key group ${bar.first}` : `Greatest of the key groups ${bar.first} to ${bar.last}`;
  const owner = bar.first === bar.last ? `, subtask ${bar.first % sizes.parallelism} of ${sizes.operator}` : "";
  return `${what}: ${count(bar.rows, "row")}, ${bytes(bar.bytes)}${owner}`;
}

function GroupTable({ sizes, values }: { sizes: KeyGroupSizes; values: number[] }) {
  const order = values.map((_, group) => group).sort((left, right) => values[right]! - values[left]! || left - right);
  return (
    <>
      <div class="scroll" tabIndex={0} role="group" aria-label="Sizes of key groups">
        <table>
          <caption class="hidden">Key groups, the greatest first</caption>
          <thead>
            <tr>
              <th scope="col" class="number">Key group</th>
              <th scope="col" class="number">Subtask</th>
              <th scope="col" class="number">Rows</th>
              <th scope="col" class="number">Bytes</th>
            </tr>
          </thead>
          <tbody>
            {order.slice(0, LISTED).map((group) => (
              <tr key={group}>
                <td class="number">{group}</td>
                <td class="number">{group % sizes.parallelism}</td>
                <td class="number">{count(sizes.rows[group]!, "row")}</td>
                <td class="number">{bytes(sizes.bytes[group]!)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {order.length > LISTED && <p class="quiet caption">The greatest {LISTED} of {count(order.length, "key group")}.</p>}
    </>
  );
}
