/** Rows of a table in key order. Only the visible ones are in the document. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { StateTable } from "../../api/types";
import { scanCommands, type Looked } from "../../model/commands";
import { count } from "../../model/format";
import { addressOf, isAddressable, keyText, type Prefix } from "../../model/keys";
import { cellText, isNumeric, valueText } from "../../model/values";
import { address, choose } from "../../router";
import { CopyAs, Loading, Problem } from "../../ui/parts";
import { shownColumns } from "./columns";
import { useScroller, type Scroller } from "./scroller";

const HEIGHT = 33;

export function Rows(props: { table: StateTable; asked: Looked; prefix: Prefix; selected: string | null }) {
  const { table, asked, prefix } = props;
  const { scroller, stale, again } = useScroller(asked, prefix.open, table);
  // A column that is being typed may not be a value of its type yet.
  const incomplete = scroller.problem !== null && [400, 422].includes(scroller.problem.status);
  return (
    <>
      <Problem problem={incomplete ? null : scroller.problem} retry={again} />
      {incomplete && <p class="empty">{scroller.problem?.message}</p>}
      {!scroller.started && !scroller.problem && <Loading what="rows" />}
      {scroller.started && scroller.count === 0 && <p class="empty">{prefix.values.length > 0 ? "No key begins like this." : "The table has no rows."}</p>}
      {scroller.count > 0 && <Grid {...props} scroller={scroller} version={scroller.version} stale={stale} />}
      {scroller.started && (
        <p class="quiet caption">
          {scroller.complete ? count(scroller.count, "row") : `The first ${count(scroller.count, "row")}; scrolling reads more`}{scroller.complete ? " as" : ": as"} of epoch {scroller.epoch}, in key order.{" "}
          {asked.epoch === null && (
            <button type="button" class="inline" onClick={again}>
              Read again
            </button>
          )}{" "}
          <CopyAs commands={() => scanCommands(asked, prefix.open)} />
        </p>
      )}
    </>
  );
}

function Grid(props: { table: StateTable; selected: string | null; scroller: Scroller; version: number; stale: boolean }) {
  const { table, scroller, selected } = props;
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 420 });
  const keys = addressOf(table);
  const columns = shownColumns(table).columns;
  const widths = useWidths(scroller, [...keys.map((column) => column.name), ...columns.map((column) => column.name)], keys.length);
  const measure = () => {
    const element = box.current;
    if (element) setView({ top: element.scrollTop, height: element.clientHeight });
  };
  const total = scroller.count;
  const first = Math.max(0, Math.min(total - 1, Math.floor(view.top / HEIGHT)) - 8);
  const last = Math.min(total, Math.ceil((view.top + view.height) / HEIGHT) + 8);
  useEffect(() => {
    scroller.show(first, last);
  }, [scroller, first, last, props.version]);
  useEffect(() => {
    if (box.current) box.current.scrollTop = 0;
    measure();
  }, [scroller]);
  const indices = Array.from({ length: Math.max(0, last - first) }, (_, index) => first + index);
  return (
    <div ref={box} class={`scroll grid ${props.stale ? "stale" : ""}`} tabIndex={0} role="group" aria-label={`Rows of ${table.table}`} aria-busy={props.stale} onScroll={measure}>
      <table aria-rowcount={scroller.complete ? total + 1 : -1}>
        <caption class="hidden">Rows of {table.table} in key order</caption>
        <colgroup>
          {widths.map((width, index) => (
            <col key={index} style={{ width: `${width}ch` }} />
          ))}
        </colgroup>
        <thead>
          <tr>
            {keys.map((column) => (
              <th key={column.name} scope="col" class={`key ${isNumeric(column.type) ? "number" : ""}`} title={`${column.name} ${column.type}`}>
                <bdi>{column.name}</bdi>
              </th>
            ))}
            {columns.map((column) => (
              <th key={column.name} scope="col" class={isNumeric(column.type) ? "number" : ""} title={`${column.name} ${column.type}`}>
                <bdi>{column.name}</bdi>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <Space rows={first} columns={widths.length} />
          {indices.map((index) => {
            const row = scroller.row(index);
            if (!row) {
              return (
                <tr key={index} aria-rowindex={index + 2}>
                  <td colSpan={widths.length} class="quiet">
                    Reading
                  </td>
                </tr>
              );
            }
            const owner = table.key.map((column) => row.key[column.name]);
            const text = keyText(owner);
            return (
              <tr key={index} aria-rowindex={index + 2} class={text === selected ? "selected" : ""}>
                {keys.map((column, position) => (
                  <td key={column.name} class={`key ${isNumeric(column.type) ? "number" : ""}`}>
                    {position === 0 && isAddressable(owner) ? <KeyLink text={text} value={row.key[column.name]} /> : <Cell value={row.key[column.name]} />}
                  </td>
                ))}
                {columns.map((column) => (
                  <td key={column.name} class={isNumeric(column.type) ? "number" : ""}>
                    <Cell value={row.value[column.name]} />
                  </td>
                ))}
              </tr>
            );
          })}
          <Space rows={total - last} columns={widths.length} />
        </tbody>
      </table>
    </div>
  );
}

function Space({ rows, columns }: { rows: number; columns: number }) {
  if (rows <= 0) return null;
  return (
    <tr class="space" aria-hidden="true">
      <td colSpan={columns} style={{ height: `${rows * HEIGHT}px` }} />
    </tr>
  );
}

/** Null looks different from the text "null", and an empty text is visible. */
export function Cell({ value, most = 80 }: { value: unknown; most?: number }) {
  if (value === null || value === undefined) return <i class="null">null</i>;
  if (value === "") return <i class="null">empty text</i>;
  return <bdi>{cellText(value, most)}</bdi>;
}

export function KeyLink({ text, value }: { text: string; value: unknown }) {
  const { path, query } = address.value;
  return (
    <a
      href={`${path}${query.size ? `?${query}` : ""}#${new URLSearchParams({ key: text })}`}
      onClick={(event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
        event.preventDefault();
        choose({}, { key: text });
      }}
    >
      <Cell value={value} />
    </a>
  );
}

/** Widths of columns in characters, from the rows of the first page, so that scrolling does not change them. */
function useWidths(scroller: Scroller, names: string[], keys: number): number[] {
  const made = useRef<{ name: string; widths: number[] } | null>(null);
  const identity = useRef(new WeakMap<Scroller, number>());
  if (!identity.current.has(scroller)) identity.current.set(scroller, Math.random());
  const name = `${identity.current.get(scroller)} ${names.join("\0")}`;
  if (made.current?.name !== name) {
    const rows = Array.from({ length: Math.min(60, scroller.count) }, (_, index) => scroller.row(index)).filter((row) => row !== undefined);
    const widths = names.map((column, index) => {
      const longest = Math.max(column.length + 1, ...rows.map((row) => valueText(clipped((index < keys ? row.key : row.value)[column])).length));
      return Math.max(9, Math.min(index < keys ? 44 : 32, longest + 4));
    });
    made.current = { name, widths };
  }
  return made.current.widths;
}

function clipped(value: unknown): unknown {
  return typeof value === "string" ? value.slice(0, 60) : value;
}
