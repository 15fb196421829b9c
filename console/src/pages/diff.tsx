/** What differs between two snapshots: code, parameters, input, and keys of every table. */
import { useState } from "preact/hooks";
import { get, resource } from "../api/client";
import { project } from "../api/session";
import type { DiffRows, SnapshotDiff } from "../api/types";
import { clipped, count, plain, shown } from "../model/format";
import { useData } from "../ui/data";
import { Age, Facts, Loading, Problem } from "../ui/parts";
import { CodeDiff } from "./diff_code";

export function DiffView(props: { name: string; from: string; to: string; swap: () => void; clear: () => void }) {
  // The path names one snapshot by its number, so that the first one decides the application of the path.
  const [application, epoch] = props.from.includes(":") ? (props.from.split(":") as [string, string]) : [props.name, props.from];
  const to = props.to.includes(":") || application === props.name ? props.to : `${props.name}:${props.to}`;
  const path = resource(project.value, "applications", application, "snapshots", epoch, "diff");
  const data = useData(`diff ${path} ${to}`, (signal) => get<SnapshotDiff>(path, { to }, signal));
  const diff = data.value;
  return (
    <section class="card diff" aria-labelledby="diff-title">
      <header class="title">
        <h2 id="diff-title">
          {application} epoch {epoch} <span class="quiet">to</span> {diff ? `${diff.to.application} epoch ${diff.to.epoch}` : props.to.replace(":", " epoch ")}
        </h2>
        <span class="push" />
        <button type="button" onClick={props.swap}>
          Swap
        </button>
        <button type="button" onClick={props.clear}>
          Pick others
        </button>
      </header>
      <Problem problem={data.problem} retry={data.reload} />
      {!diff && !data.problem && <Loading what="the difference" />}
      {diff && <Summary diff={diff} />}
      {diff && diff.tables.length > 0 && <h3>Keys <small>{totals(diff)}</small></h3>}
      {diff?.tables.map((table) => (
        <TableDiff key={table.table} table={table} path={path} to={to} />
      ))}
      {diff && diff.tables.length === 0 && <p class="empty">Both snapshots have no state tables.</p>}
    </section>
  );
}

function Summary({ diff }: { diff: SnapshotDiff }) {
  const facts: [string, preact.ComponentChildren][] = [
    ["Committed", <>{diff.from.committed_at && <Age at={diff.from.committed_at} />} and {diff.to.committed_at && <Age at={diff.to.committed_at} />}</>],
  ];
  if (diff.ancestor) facts.push(["Common ancestor", `epoch ${diff.ancestor.epoch} of branch ${diff.ancestor.branch}`]);
  if (diff.from.parallelism !== diff.to.parallelism) facts.push(["Subtasks", <><del>{diff.from.parallelism}</del> <ins>{diff.to.parallelism}</ins></>]);
  const paths = ([["from", diff.between?.from], ["to", diff.between?.to]] as const).filter(([, way]) => way && way.epochs > 0);
  return (
    <>
      <Facts items={facts} />
      <CodeDiff diff={diff} />
      <section class="part" aria-label="Parameters">
        <h3>Parameters <small>{diff.parameters.length === 0 ? "the same" : `${count(diff.parameters.length, "parameter")} differ${diff.parameters.length === 1 ? "s" : ""}`}</small></h3>
        {diff.parameters.length > 0 && (
          <ul class="sides">
            {diff.parameters.map((each) => (
              <li key={each.name}>
                <b>{each.name}</b> <del>{clipped(plain(each.from as never), 200)}</del> <ins>{clipped(plain(each.to as never), 200)}</ins>
              </li>
            ))}
          </ul>
        )}
      </section>
      <section class="part" aria-label="Input">
        <h3>Input <small>{diff.between ? (paths.length === 0 ? "the same" : "since the common ancestor") : "unknown: the epochs between have expired or are too many"}</small></h3>
        {paths.map(([side, way]) => (
          <div key={side} class="scroll" tabIndex={0} role="group" aria-label={`Input of the ${side === "from" ? "first" : "second"} snapshot`}>
            <table>
              <thead>
                <tr>
                  <th scope="col">{side === "from" ? diff.from.application : diff.to.application}, {count(way!.epochs, "epoch")} to epoch {side === "from" ? diff.from.epoch : diff.to.epoch}</th>
                  <th scope="col">From offset</th>
                  <th scope="col">To offset</th>
                  <th scope="col" class="number">Rows</th>
                </tr>
              </thead>
              <tbody>
                {Object.entries(way!.slices).map(([source, slice]) => (
                  <tr key={source}>
                    <td>{source}</td>
                    <td><code>{clipped(plain(slice.start as never), 160)}</code></td>
                    <td><code>{clipped(plain(slice.end as never), 160)}</code></td>
                    <td class="number">{slice.rows === null ? "unknown" : count(slice.rows, "row")}</td>
                  </tr>
                ))}
                {way!.changes.map((dated, index) => (
                  <tr key={index}>
                    <td colSpan={4}><span class="mark kind">{dated.change.kind}</span> at epoch {dated.epoch}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        ))}
      </section>
    </>
  );
}

function totals(diff: SnapshotDiff): string {
  const differing = diff.tables.reduce((sum, table) => sum + (table.added ?? 0) + (table.changed ?? 0) + (table.deleted ?? 0) + (table.expired ?? 0), 0);
  return `${count(differing, "key")} differ${differing === 1 ? "s" : ""} in ${count(diff.tables.length, "table")}`;
}

function TableDiff({ table, path, to }: { table: SnapshotDiff["tables"][number]; path: string; to: string }) {
  const [open, setOpen] = useState(false);
  const counts = ([["added", table.added], ["changed", table.changed], ["deleted", table.deleted], ["expired", table.expired]] as const).filter(([, number]) => number);
  return (
    <details class="opening" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <b>{table.table}</b>
        {table.added === null ? (
          <span>not comparable</span>
        ) : counts.length === 0 ? (
          <span class="quiet">no key differs</span>
        ) : (
          counts.map(([kind, number]) => (
            <span key={kind} class={`mark ${kind}`}>
              {count(number ?? 0, "key")} {kind}
            </span>
          ))
        )}
      </summary>
      {table.note && <p class="notice">{table.note}</p>}
      {open && table.added !== null && counts.length > 0 && <Rows table={table.table} path={path} to={to} />}
    </details>
  );
}

function Rows({ table, path, to }: { table: string; path: string; to: string }) {
  const [limit, setLimit] = useState(50);
  const data = useData(`rows ${path} ${to} ${table} ${limit}`, (signal) => get<DiffRows>(`${path}/${encodeURIComponent(table)}`, { to, limit }, signal));
  const rows = data.value;
  if (!rows) return data.problem ? <Problem problem={data.problem} retry={data.reload} /> : <Loading what="rows" />;
  const keys = Object.keys(rows.items[0]?.key ?? {});
  return (
    <>
      <div class="scroll tall" tabIndex={0} role="group" aria-label={`Differing rows of ${table}`}>
        <table>
          <caption class="hidden">Differing rows of {table}, with the values before and after</caption>
          <thead>
            <tr>
              <th scope="col">Change</th>
              {keys.map((name) => (
                <th key={name} scope="col" class="key">
                  {name}
                </th>
              ))}
              {rows.compared.slice(0, 30).map((name) => (
                <th key={name} scope="col">
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.items.map((row, index) => (
              <tr key={index}>
                <td>
                  <span class={`mark ${row.kind}`}>{row.kind}</span>
                </td>
                {keys.map((name) => (
                  <td key={name} class="key">
                    <bdi>{clipped(shown(row.key[name]), 60)}</bdi>
                  </td>
                ))}
                {rows.compared.slice(0, 30).map((name) => {
                  const [before, after] = [row.old?.[name], row.new?.[name]];
                  if (row.old && row.new && JSON.stringify(before) === JSON.stringify(after)) return <td key={name} class="quiet"><bdi>{clipped(shown(after), 60)}</bdi></td>;
                  return (
                    <td key={name} class="nowrap">
                      {row.old && <del><bdi>{clipped(shown(before), 60)}</bdi></del>} {row.new && <ins><bdi>{clipped(shown(after), 60)}</bdi></ins>}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.next_cursor && limit < 1000 && (
        <p class="more">
          <button type="button" onClick={() => setLimit(limit + 200)}>
            Show more rows
          </button>
        </p>
      )}
    </>
  );
}
