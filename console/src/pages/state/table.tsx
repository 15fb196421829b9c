/** One state table: find a key, its rows, its key groups, and the chosen key. */
import { useState } from "preact/hooks";
import { project } from "../../api/session";
import type { StateTable } from "../../api/types";
import type { Looked } from "../../model/commands";
import { addressOf, columnsOf, keyText, keyValues, prefixColumns, prefixOf, type Given, type KeyPart } from "../../model/keys";
import { address, choose } from "../../router";
import { ColumnFilter } from "./columns";
import { Fields } from "./find";
import { KeyGroups } from "./groups";
import { KeyView } from "./key";
import { usePaused } from "./reading";
import { Rows } from "./rows";

export function Table({ name, table }: { name: string; table: StateTable }) {
  const epoch = address.value.query.get("epoch");
  const key = address.value.fragment.get("key");
  const columns = addressOf(table);
  const [given, setGiven] = useState<Given[]>(() => {
    const parts = key === null ? [] : keyValues(key);
    return columns.map((_, index) => (index < parts.length && parts.length <= columns.length ? parts[index] : undefined));
  });
  const scanned = prefixColumns(table);
  const skipped = columns.length - scanned.length;
  const prefix = usePaused(given, 250);
  const leading = prefixOf(prefix.slice(skipped), scanned.map((column) => column.type));
  const looked = (values: readonly KeyPart[], types: readonly string[]): Looked => ({ project: project.value, application: name, table: table.table, values, types, epoch });
  const values = valuesOf(given, table);
  const find = (event?: Event) => {
    event?.preventDefault();
    if (values) choose({}, { key: keyText(values) });
  };
  return (
    <div class="table-view">
      <section class="card" aria-labelledby="find-title">
        <h2 id="find-title">
          Find a key <small>in <bdi>{table.table}</bdi></small>
        </h2>
        {table.note && <p class="notice">{table.note}</p>}
        {!table.queryable && <p class="notice">This table is not queryable: the application does not offer its rows for look-ups.</p>}
        {table.queryable && (
          <>
            <form class="find" onSubmit={find}>
              <Fields columns={columns} optional={table.sub_key.length} given={given} change={setGiven} submit={() => find()} />
              <button type="submit" class="primary" disabled={!values}>
                Look up
              </button>
            </form>
            <ColumnFilter table={table} />
            <Rows table={table} asked={looked(leading.values, scanned.map((column) => column.type))} prefix={leading} selected={key} />
          </>
        )}
      </section>
      {key !== null && table.queryable && (
        <KeyView key={key} table={table} asked={looked(keyValues(key), columnsOf(table, keyValues(key).length).map((column) => column.type))} />
      )}
      <KeyGroups name={name} table={table} epoch={epoch} />
    </div>
  );
}

/** The key of the form; null while it is incomplete. The columns of a map, list or window may be left out. */
function valuesOf(given: readonly Given[], table: StateTable): KeyPart[] | null {
  const own = table.key.length;
  // Without the number of an instance, partial state answers with all of them.
  if (table.scope === "partial" && given[0] === undefined) {
    const rest = given.slice(own);
    return rest.length > 0 && !rest.includes(undefined) ? (rest as KeyPart[]) : null;
  }
  const end = given.indexOf(undefined);
  const values = (end < 0 ? given : given.slice(0, end)) as KeyPart[];
  const gap = end >= 0 && given.slice(end).some((value) => value !== undefined);
  if (gap || values.length < own || (values.length > own && values.length < given.length)) return null;
  return values;
}
