/** The value of a key: one row, entries of a list, map or window, or the instances of partial state. */
import { useMemo, useState } from "preact/hooks";
import type { Column, StateTable, StateValue } from "../../api/types";
import { count } from "../../model/format";
import { jsonText } from "../../model/exact";
import { keyText } from "../../model/keys";
import { clip, isNested, isNumeric, valueText } from "../../model/values";
import { say, VirtualList } from "../../ui/parts";
import { MOST_COLUMNS, shownColumns, visibleColumns } from "./columns";
import { Cell, KeyLink } from "./rows";

const SHORT = 200;
const CHUNK = 20_000;
const ENTRY = 33;

export function Value({ value, table }: { value: StateValue; table: StateTable }) {
  if (value.entries) return <Entries value={value} entries={value.entries} table={table} />;
  if (value.instances) {
    const rows = value.instances.map((each) => ({ instance: each.instance, ...each.value }));
    return (
      <>
        {value.value ? <Columns value={value.value} table={table} /> : <p class="quiet">Only the program can merge the instances.</p>}
        <EntryTable rows={rows} names={["instance", ...visibleColumns(table).map((column) => column.name)]} numeric={numericOf(table)} />
      </>
    );
  }
  return value.value ? <Columns value={value.value} table={table} /> : null;
}

function numericOf(table: StateTable): Set<string> {
  return new Set([...table.value, ...table.sub_key].filter((column) => isNumeric(column.type)).map((column) => column.name));
}

function Columns({ value, table }: { value: Record<string, unknown>; table: StateTable }) {
  const shown = shownColumns(table, Number.POSITIVE_INFINITY);
  if (shown.columns.length > MOST_COLUMNS) {
    return (
      <VirtualList
        class="columnlist"
        count={shown.columns.length}
        rowHeight={ENTRY}
        label={`Values of ${count(shown.columns.length, "column")}`}
        render={(index) => {
          const column = shown.columns[index]!;
          return (
            <div key={column.name} class="columnrow">
              <bdi class="quiet">{column.name}</bdi>
              <Cell value={value[column.name]} most={200} />
            </div>
          );
        }}
      />
    );
  }
  return (
    <dl class="value">
      {shown.columns.map((column) => (
        <div key={column.name} class={isLong(value[column.name], column) ? "wide" : ""}>
          <dt title={column.type}>
            <bdi>{column.name}</bdi>
          </dt>
          <dd>
            <OneValue value={value[column.name]} column={column} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

function isLong(value: unknown, column: Column): boolean {
  return isNested(column.type) || (typeof value === "string" && (value.length > 60 || value.includes("\n")));
}

function OneValue({ value, column }: { value: unknown; column: Column }) {
  const text = useMemo(() => {
    if (column.type === "variant" && typeof value === "string") return value;
    return value !== null && typeof value === "object" ? jsonText(value, "\n") : valueText(value);
  }, [value]);
  if (value === null || value === undefined || value === "") return <Cell value={value} />;
  const unit = column.type === "binary" ? <small> base64, {count(decodedBytes(text), "byte")}</small> : null;
  if (text.length <= SHORT && !text.includes("\n")) {
    return (
      <>
        <bdi class={text.length > 12 ? "medium" : ""}>{text}</bdi>
        {unit}
      </>
    );
  }
  return (
    <>
      {unit}
      <LongText text={text} name={column.name} />
    </>
  );
}

function decodedBytes(base64: string): number {
  return (base64.length * 3) / 4 - (base64.endsWith("==") ? 2 : base64.endsWith("=") ? 1 : 0);
}

/** A long text is added to the page in parts, because the layout of a megabyte takes the browser a second. */
function LongText({ text, name }: { text: string; name: string }) {
  const [most, setMost] = useState(SHORT);
  const clipped = text.length > most && text.length > CHUNK / 4;
  const all = text.length <= CHUNK / 4;
  const save = () => {
    const url = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
    const anchor = document.createElement("a");
    anchor.href = url;
    anchor.download = `${name.replace(/[^\w.-]+/g, "_") || "value"}.txt`;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    say("Saved.");
  };
  return (
    <div class="longvalue">
      <pre tabIndex={0}>
        <bdi>{all ? text : clip(text, most)}</bdi>
      </pre>
      {!all && (
        <p class="caption">
          {clipped ? `${count(most, "character")} of ${count(text.length, "character")}. ` : `${count(text.length, "character")}. `}
          {clipped && (
            <button type="button" class="inline" onClick={() => setMost(most < CHUNK ? CHUNK : most + CHUNK)}>
              Show more
            </button>
          )}{" "}
          {most > SHORT && (
            <button type="button" class="inline" onClick={() => setMost(SHORT)}>
              Show less
            </button>
          )}{" "}
          <button type="button" class="inline" onClick={save}>
            Download
          </button>
        </p>
      )}
    </div>
  );
}

function Entries({ value, entries, table }: { value: StateValue; entries: Record<string, unknown>[]; table: StateTable }) {
  // Merged windows have other columns than the stored panes, and no address of their own.
  const own = table.key.map((column) => value.key[column.name]);
  const addressed = table.sub_key.length > 0 && entries.length > 0 && table.sub_key.every((column) => column.name in entries[0]!);
  const names = [...new Set([...table.sub_key.map((column) => column.name).filter((name) => addressed || name in (entries[0] ?? {})), ...Object.keys(entries[0] ?? {})])];
  const internal = new Set(table.value.filter((column) => column.internal).map((column) => column.name));
  return (
    <>
      <p class="quiet caption">{count(entries.length, "entr").replace(/entrs?$/, entries.length === 1 ? "entry" : "entries")}</p>
      {entries.length > 0 && (
        <EntryTable
          rows={entries}
          names={names.filter((name) => !internal.has(name)).slice(0, MOST_COLUMNS)}
          numeric={numericOf(table)}
          {...(addressed ? { link: (entry: Record<string, unknown>) => keyText([...own, ...table.sub_key.map((column) => entry[column.name])]) } : {})}
        />
      )}
    </>
  );
}

const SHOWN = 100;

function EntryTable(props: { rows: Record<string, unknown>[]; names: string[]; numeric: Set<string>; link?: (row: Record<string, unknown>) => string }) {
  const { rows, names, numeric, link } = props;
  const [most, setMost] = useState(SHOWN);
  return (
    <>
      <div class="scroll" tabIndex={0} role="group" aria-label="Entries of the key">
        <table>
          <thead>
            <tr>
              {names.map((name) => (
                <th key={name} scope="col" class={numeric.has(name) ? "number" : ""}>
                  <bdi>{name}</bdi>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, most).map((row, index) => (
              <tr key={index}>
                {names.map((name, position) => (
                  <td key={name} class={numeric.has(name) ? "number" : ""}>
                    {link && position === 0 ? <KeyLink text={link(row)} value={row[name]} /> : <Cell value={row[name]} most={200} />}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length > most && (
        <button type="button" class="inline" onClick={() => setMost(most + SHOWN * 4)}>
          Show more entries ({count(rows.length - most, "hidden one")})
        </button>
      )}
    </>
  );
}
