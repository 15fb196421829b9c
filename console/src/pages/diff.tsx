/** What differs between two snapshots: code, parameters, input, and keys of every table. */
import { useState } from "preact/hooks";
import { get, resource } from "../api/client";
import { project } from "../api/session";
import type { DiffRows, SnapshotDiff } from "../api/types";
import { clipped, count, plain, shown } from "../model/format";
import { useData } from "../ui/data";
import { Age, Facts, Loading, Problem } from "../ui/parts";

export function DiffView(props: { name: string; from: string; to: string; clear: () => void }) {
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
        <button type="button" onClick={props.clear}>
          Pick others
        </button>
      </header>
      <Problem problem={data.problem} retry={data.reload} />
      {!diff && !data.problem && <Loading what="the difference" />}
      {diff && <Summary diff={diff} />}
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
    ["Code", diff.code === "same" ? <>the same: <code>{diff.from.filename}</code></> : <>different: <code>{diff.from.filename} {diff.from.artifact.slice(0, 8)}</code>, <code>{diff.to.filename} {diff.to.artifact.slice(0, 8)}</code></>],
  ];
  for (const each of diff.parameters) {
    facts.push([`Parameter ${each.name}`, <><del>{clipped(plain(each.from as never), 200)}</del> <ins>{clipped(plain(each.to as never), 200)}</ins></>]);
  }
  if (diff.ancestor) facts.push(["Common ancestor", `epoch ${diff.ancestor.epoch} of ${diff.ancestor.branch}`]);
  for (const [side, way] of [["from", diff.between?.from], ["to", diff.between?.to]] as const) {
    if (!way || way.epochs === 0) continue;
    facts.push([
      `Path to ${side === "from" ? "the first" : "the second"}`,
      <>
        {count(way.epochs, "epoch")}
        {Object.entries(way.slices).map(([source, slice]) => (
          <span key={source}>
            ; {source} <code>{clipped(`${plain(slice.start as never)} to ${plain(slice.end as never)}`, 160)}</code>
            {slice.rows !== null && `, ${count(slice.rows, "row")}`}
          </span>
        ))}
        {way.changes.map((dated, index) => (
          <span key={index}>
            ; {dated.change.kind} at epoch {dated.epoch}
          </span>
        ))}
      </>,
    ]);
  }
  return <Facts items={facts} />;
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
