/** Changes of a key, as a chart and as a table. */
import type { KeyChange, KeyHistory, StateTable } from "../../api/types";
import { count, moment } from "../../model/format";
import { jsonText } from "../../model/exact";
import { cellText, chartValues, difference, isNumeric } from "../../model/values";
import { address, choose } from "../../router";
import { Chart } from "../../ui/chart";
import { shownColumns, visibleColumns } from "./columns";
import { Cell } from "./rows";

export function History(props: { history: KeyHistory; table: StateTable; single: boolean; epoch: number | null; older: () => void; stale: boolean }) {
  const { history, table, single, epoch } = props;
  const columns = shownColumns(table).columns;
  const numeric = visibleColumns(table).filter((column) => isNumeric(column.type)).map((column) => column.name);
  const asked = address.value.query.get("column");
  const column = numeric.find((name) => name === asked) ?? numeric[0];
  const changes = history.items;
  const ordered = [...changes].reverse();
  const chart = single && column && ordered.length > 1 ? chartValues(ordered.map((change) => change.new?.[column])) : null;
  const series = chart?.base == null ? column : `${column} minus ${chart.base}`;
  const marked = epoch === null ? undefined : changes.find((change) => change.epoch <= epoch);
  return (
    <section aria-labelledby="history-title">
      <div class="title">
        <h3 id="history-title">
          History <small>{count(changes.length, "change")}{history.next_cursor ? ", newest first; older ones exist" : ""}</small>
        </h3>
        <span class="push" />
        {single && numeric.length > 1 && (
          <label class="choice">
            <span>Chart</span>
            <select value={column} onChange={(event) => choose({ column: event.currentTarget.value })}>
              {numeric.slice(0, 200).map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
        )}
      </div>
      {chart && column && (
        <Chart
          times={ordered.map((change) => change.at)}
          series={[{ label: series!, unit: "", stepped: true, values: chart.values }]}
          label={`${series} over ${count(ordered.length, "change")}; the table below has the values`}
          marker={marked?.at ?? null}
        />
      )}
      {changes.length === 0 ? (
        <p class="empty">The key has never had a row in the retained epochs.</p>
      ) : (
        <div class={`scroll tall ${props.stale ? "stale" : ""}`} tabIndex={0} role="group" aria-label="Changes of the key">
          <table class="flat">
            <caption class="hidden">Changes of the key, newest first</caption>
            <thead>
              <tr>
                <th scope="col">Epoch</th>
                <th scope="col">Time</th>
                {!single &&
                  table.sub_key.map((each) => (
                    <th key={each.name} scope="col">
                      <bdi>{each.name}</bdi>
                    </th>
                  ))}
                {columns.map((each) => (
                  <th key={each.name} scope="col" class={isNumeric(each.type) ? "number" : ""}>
                    <bdi>{each.name}</bdi>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {changes.map((change, index) => (
                <Change
                  key={`${change.branch}/${change.epoch}/${index}`}
                  change={change}
                  columns={columns}
                  sub={single ? [] : table.sub_key.map((each) => each.name)}
                  later={epoch !== null && change.epoch > epoch}
                  current={change === marked}
                />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {history.next_cursor && (
        <button type="button" class="inline" onClick={props.older}>
          Read older changes
        </button>
      )}
      {history.known_since && <p class="quiet caption">Changes before epoch {history.known_since.epoch} have expired.</p>}
    </section>
  );
}

function Change(props: { change: KeyChange; columns: { name: string; type: string }[]; sub: string[]; later: boolean; current: boolean }) {
  const { change } = props;
  return (
    <tr class={props.current ? "selected" : props.later ? "later" : ""} aria-current={props.current ? "true" : undefined}>
      <td>
        <button type="button" class="inline" onClick={() => choose({ epoch: String(change.epoch) })}>
          epoch {change.epoch}
        </button>
      </td>
      <td class="nowrap">{moment(change.at)}</td>
      {props.sub.map((name) => (
        <td key={name}>
          <Cell value={change.key[name]} most={60} />
        </td>
      ))}
      {change.new === null ? (
        <td colSpan={Math.max(1, props.columns.length)} class="gone">
          {change.expired ? "expired" : "deleted"}
        </td>
      ) : (
        props.columns.map(({ name, type }) => {
          const [before, after] = [change.old?.[name], change.new?.[name]];
          const differs = change.old !== null && !same(before, after);
          const by = differs && isNumeric(type) ? difference(before, after) : null;
          return (
            <td key={name} class={`${isNumeric(type) ? "number" : ""} ${differs ? "differs" : ""}`} title={differs ? `before: ${before === null ? "null" : cellText(before, 200)}` : ""}>
              <Cell value={after} most={60} />
              {by !== null && <small> {by}</small>}
            </td>
          );
        })
      )}
    </tr>
  );
}

function same(before: unknown, after: unknown): boolean {
  if (before === after) return true;
  return before !== null && after !== null && typeof before === "object" && typeof after === "object" && jsonText(before) === jsonText(after);
}
