/** Tables with many columns show some at once, chosen by a filter that is part of the address. */
import type { Column, StateTable } from "../../api/types";
import { count } from "../../model/format";
import { address, choose } from "../../router";

export const MOST_COLUMNS = 40;

export interface Shown {
  columns: Column[];
  matching: number;
  total: number;
}

export function visibleColumns(table: StateTable): Column[] {
  return table.value.filter((column) => !column.internal);
}

export function shownColumns(table: StateTable, most = MOST_COLUMNS): Shown {
  const all = visibleColumns(table);
  const words = (address.value.query.get("columns") ?? "").toLowerCase();
  const matching = all.length > MOST_COLUMNS && words ? all.filter((column) => column.name.toLowerCase().includes(words)) : all;
  return { columns: matching.slice(0, most), matching: matching.length, total: all.length };
}

export function ColumnFilter({ table }: { table: StateTable }) {
  const shown = shownColumns(table);
  if (shown.total <= MOST_COLUMNS) return null;
  return (
    <div class="column-filter">
      <label class="choice">
        <span>Columns</span>
        <input
          type="search"
          placeholder="Part of a name"
          value={address.value.query.get("columns") ?? ""}
          onInput={(event) => choose({ columns: event.currentTarget.value || null })}
        />
      </label>
      <small role="status">
        {shown.matching === 0 ? "No column has this name" : `${shown.columns.length} of ${count(shown.matching, shown.matching === shown.total ? "column" : "matching column")}`}
        {shown.columns.length < shown.matching && "; the value of a key lists all"}
      </small>
    </div>
  );
}
