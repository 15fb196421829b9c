/** State tables: find a key, its value as of any retained epoch, its history, and what changed it. */
import { useEffect, useState } from "preact/hooks";
import { get, ProblemError, resource, type Query } from "../api/client";
import { project } from "../api/session";
import type { Blame, Epoch, EpochPage, KeyChange, KeyHistory, Page, Scan, StateTable, StateValue } from "../api/types";
import { curl, epochal, literal, python } from "../model/commands";
import { clipped, count, moment, plain, shown } from "../model/format";
import { keyText, keyValues, prefixText } from "../model/keys";
import { address, choose, link } from "../router";
import { Chart } from "../ui/chart";
import { useData } from "../ui/data";
import { Age, CopyAs, Facts, Loading, Problem } from "../ui/parts";
import type { View } from "./application";

const ROWS = 50;
const CHANGES = 60;

export default function StatePage({ application }: View) {
  const name = application.name;
  const path = (...segments: string[]) => resource(project.value, "applications", name, ...segments);
  const tables = useData(
    `tables ${path()}`,
    (signal) => get<Page<StateTable>>(path("state"), { limit: 500 }, signal),
    (event) => event.application === name && event.kind === "epoch" && event.data.state === "committed",
  );
  const items = tables.value?.items ?? [];
  const wanted = address.value.query.get("table");
  const table = items.find((each) => each.table === wanted) ?? items.find((each) => each.queryable) ?? items[0];
  return (
    <>
      <Problem problem={tables.problem} retry={tables.reload} />
      {!tables.value && !tables.problem && <Loading what="state tables" />}
      {tables.value && items.length === 0 && <p class="empty">The application has no state tables.</p>}
      {table && (
        <div class="state-page">
          <nav class="tables" aria-label="State tables">
            {items.map((each) => (
              <a key={each.table} href={`${link("applications", name, "state")}?table=${encodeURIComponent(each.table)}`} aria-current={each === table ? "page" : undefined}>
                <b>{each.table}</b>
                <small>
                  {each.kind}
                  {each.rows !== null ? `, ${count(each.rows, "row")}` : each.queryable ? "" : ", not queryable"}
                </small>
              </a>
            ))}
          </nav>
          <Table key={table.table} name={name} table={table} path={path} />
        </div>
      )}
    </>
  );
}

interface Part {
  name: string;
  table: StateTable;
  path: (...segments: string[]) => string;
}

function Table({ name, table, path }: Part) {
  const epoch = address.value.query.get("epoch");
  const key = address.value.fragment.get("key");
  const columns = table.key;
  const visible = table.value.filter((column) => !column.internal);
  const [values, setValues] = useState<string[]>(() => columns.map((_, index) => (key ? (keyValues(key)[index] ?? "") : "")));
  const [prefix, setPrefix] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setPrefix(prefixText(values, columns.map((column) => column.type))), 250);
    return () => clearTimeout(timer);
  }, [values]);
  const complete = values.every((value) => value !== "");
  const find = (event: Event) => {
    event.preventDefault();
    if (complete) choose({}, { key: keyText(values) });
  };
  return (
    <div class="table-view">
      <section class="card" aria-labelledby="find-title">
        <h2 id="find-title">
          Find a key <small>in {table.table}</small>
        </h2>
        {table.note && <p class="notice">{table.note}</p>}
        <form class="find" onSubmit={find}>
          {columns.map((column, index) => (
            <label key={column.name} class="field">
              <span>
                {column.name} <code>{column.type}</code>
              </span>
              <input
                value={values[index]}
                {...(index === 0 ? { "data-search": true } : {})}
                onInput={(event) => setValues(values.map((value, each) => (each === index ? event.currentTarget.value : value)))}
              />
            </label>
          ))}
          <button type="submit" class="primary" disabled={!complete}>
            Look up
          </button>
        </form>
        {table.queryable && <Rows table={table} path={path} prefix={prefix} epoch={epoch} selected={key} />}
      </section>
      {key !== null && <Key key={key} name={name} table={table} path={path} text={key} visible={visible.map((column) => column.name)} />}
    </div>
  );
}

function Rows(props: { table: StateTable; path: Part["path"]; prefix: string; epoch: string | null; selected: string | null }) {
  const { table, prefix, epoch } = props;
  const [limit, setLimit] = useState(ROWS);
  const scan = useData(`scan ${props.path()} ${table.table} ${prefix} ${epoch} ${limit}`, (signal) =>
    get<Scan>(props.path("state", table.table, "scan"), { prefix, epoch, limit }, signal),
  );
  const names = [...table.key, ...table.sub_key].map((column) => column.name);
  const visible = table.value.filter((column) => !column.internal);
  const rows = scan.value?.items ?? [];
  return (
    <>
      <Problem problem={scan.problem?.status === 400 || scan.problem?.status === 422 ? null : scan.problem} retry={scan.reload} />
      {!scan.value && !scan.problem && <Loading what="rows" />}
      {scan.value && rows.length === 0 && <p class="empty">No key begins like this.</p>}
      {rows.length > 0 && (
        <>
          <div class="scroll" tabIndex={0} role="group" aria-label={`Rows of ${table.table}`}>
            <table>
              <caption class="hidden">Rows of {table.table} in key order</caption>
              <thead>
                <tr>
                  {names.map((name) => (
                    <th key={name} scope="col" class="key">
                      {name}
                    </th>
                  ))}
                  {visible.slice(0, 40).map((column) => (
                    <th key={column.name} scope="col" class={isNumber(column.type) ? "number" : ""}>
                      {column.name}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {rows.map((row) => {
                  const text = keyText(table.key.map((column) => row.key[column.name]));
                  return (
                    <tr key={keyText(names.map((name) => row.key[name]))} class={text === props.selected ? "selected" : ""}>
                      {names.map((name, index) => (
                        <td key={name} class="key">
                          {index === 0 ? (
                            <a href={`${location.pathname}${location.search}#${new URLSearchParams({ key: text })}`} onClick={(event) => { event.preventDefault(); choose({}, { key: text }); }}>
                              <bdi>{clipped(shown(row.key[name]), 60)}</bdi>
                            </a>
                          ) : (
                            <bdi>{clipped(shown(row.key[name]), 60)}</bdi>
                          )}
                        </td>
                      ))}
                      {visible.slice(0, 40).map((column) => (
                        <td key={column.name} class={isNumber(column.type) ? "number" : ""}>
                          <bdi>{clipped(shown(row.value[column.name]), 60)}</bdi>
                        </td>
                      ))}
                    </tr>
                  );
                })}
              </tbody>
            </table>
          </div>
          <p class="quiet caption">
            {count(rows.length, "row")} as of epoch {scan.value?.epoch}, in key order.{" "}
            {scan.value?.next_cursor && limit < 1000 && (
              <button type="button" class="inline" onClick={() => setLimit(limit + 200)}>
                Show more rows
              </button>
            )}
            {!epoch && (
              <button type="button" class="inline" onClick={scan.reload}>
                Read again
              </button>
            )}
          </p>
        </>
      )}
    </>
  );
}

function Key(props: Part & { text: string; visible: string[] }) {
  const { name, table, path, text, visible } = props;
  const epoch = address.value.query.get("epoch");
  const query: Query = { key: text, epoch };
  const committed = (event: { application: string | null; kind: string; data: Record<string, unknown> }) =>
    event.application === name && event.kind === "epoch" && event.data.state === "committed";
  const value = useData(`value ${path()} ${table.table} ${text} ${epoch}`, (signal) => read(path("state", table.table, "keys"), query, signal), (event) => !epoch && committed(event));
  const history = useData(`history ${path()} ${table.table} ${text}`, (signal) => changesOf(path("state", table.table, "history"), text, signal), committed);
  const blame = useData(`blame ${path()} ${table.table} ${text} ${epoch}`, (signal) => blamed(path("state", table.table, "blame"), query, signal), (event) => !epoch && committed(event));
  const values = keyValues(text);
  const words = values.map((part) => part ?? "%00");
  const at = epoch ? `, epoch=${epoch}` : "";
  return (
    <section class="card key-view" aria-labelledby="key-title">
      <header class="title">
        <h2 id="key-title">
          <bdi>{clipped(words.join(", "), 120)}</bdi>
        </h2>
        <span class="push" />
        <CopyAs
          commands={() => ({
            cli: `${epochal(project.value, "get", name, table.table, ...words, ...(epoch ? ["--epoch", epoch] : []))}\n${epochal(project.value, "get", name, table.table, ...words, "--history")}`,
            curl: `${curl(path("state", table.table, "keys"), query)}\n${curl(path("state", table.table, "history"), { key: text })}\n${curl(path("state", table.table, "blame"), query)}`,
            python: python(project.value, `client.application(${literal(name)}).state(${literal(table.table)}).get(${values.map((part, index) => argument(part, table.key[index]?.type ?? "string")).join(", ")}${at})`),
          })}
        />
      </header>
      <EpochSlider path={path} epoch={epoch} name={name} />
      <Problem problem={value.problem} retry={value.reload} />
      {value.value === null && <p class="empty">The key has no row {epoch ? `as of epoch ${epoch}` : "now"}.</p>}
      {value.value && <Value value={value.value} visible={visible} />}
      {blame.value && <BlameView blame={blame.value} />}
      <Problem problem={history.problem} retry={history.reload} />
      {!history.value && !history.problem && <Loading what="the history of the key" />}
      {history.value && <History history={history.value} table={table} visible={visible} epoch={epoch === null ? null : Number(epoch)} />}
    </section>
  );
}

function argument(part: string | null, type: string): string {
  return part !== null && ["tinyint", "smallint", "int", "bigint"].includes(type) ? part : literal(part);
}

/** The latest changes. After an epoch, only newer ones are read, because each older one costs a file. */
const knownChanges = new Map<string, KeyHistory>();

async function changesOf(path: string, key: string, signal: AbortSignal): Promise<KeyHistory> {
  const name = `${path} ${key}`;
  const known = knownChanges.get(name);
  const answer = await get<KeyHistory>(path, { key, limit: known ? 5 : CHANGES }, signal);
  const newest = known?.items[0];
  const met = newest ? answer.items.findIndex((change) => change.branch === newest.branch && change.epoch === newest.epoch) : -1;
  let merged = answer;
  if (known && met >= 0) merged = { ...known, epoch: answer.epoch, items: [...answer.items.slice(0, met), ...known.items].slice(0, 500) };
  else if (known) merged = await get<KeyHistory>(path, { key, limit: CHANGES }, signal);
  knownChanges.clear();
  knownChanges.set(name, merged);
  return merged;
}

async function read(path: string, query: Query, signal: AbortSignal): Promise<StateValue | null> {
  try {
    return await get<StateValue>(path, query, signal);
  } catch (error) {
    if (error instanceof ProblemError && error.status === 404) return null;
    throw error;
  }
}

async function blamed(path: string, query: Query, signal: AbortSignal): Promise<Blame | null> {
  try {
    return await get<Blame>(path, query, signal);
  } catch (error) {
    if (error instanceof ProblemError && [404, 410].includes(error.status)) return null;
    throw error;
  }
}

function Value({ value, visible }: { value: StateValue; visible: string[] }) {
  const entries = value.entries ?? value.instances?.map((each) => ({ instance: each.instance, ...each.value }));
  if (entries) {
    const names = Object.keys(entries[0] ?? {});
    return (
      <div class="scroll" tabIndex={0} role="group" aria-label="Entries of the key">
        <table>
          <thead>
            <tr>
              {names.map((name) => (
                <th key={name} scope="col">
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {entries.slice(0, 500).map((entry, index) => (
              <tr key={index}>
                {names.map((name) => (
                  <td key={name}>
                    <bdi>{clipped(shown((entry as Record<string, unknown>)[name]), 200)}</bdi>
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    );
  }
  return (
    <dl class="value">
      {visible.slice(0, 200).map((name) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            <LongText text={shown(value.value?.[name])} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

function LongText({ text }: { text: string }) {
  const [all, setAll] = useState(false);
  if (text.length <= 160) return <bdi>{text}</bdi>;
  return (
    <>
      <bdi class="long">{all ? text.slice(0, 100_000) : clipped(text, 160)}</bdi>{" "}
      <button type="button" class="inline" onClick={() => setAll(!all)}>
        {all ? "Show less" : `Show ${count(text.length, "character")}`}
      </button>
    </>
  );
}

function EpochSlider({ path, epoch, name }: { path: Part["path"]; epoch: string | null; name: string }) {
  const epochs = useData(
    `snapshots ${path()}`,
    (signal) => get<EpochPage>(path("epochs"), { limit: 500, state: "committed" }, signal),
    (event) => event.application === name && event.kind === "epoch" && event.data.state === "committed",
  );
  const items: Epoch[] = (epochs.value?.items ?? []).filter((each) => each.state === "committed" && !each.collected_at).reverse();
  if (items.length === 0) return null;
  const found = epoch === null ? items.length - 1 : items.findIndex((each) => each.epoch >= Number(epoch));
  const index = found < 0 ? items.length - 1 : found;
  const chosen = items[index]!;
  const go = (next: number) => choose({ epoch: next >= items.length - 1 ? null : String(items[Math.max(0, next)]!.epoch) });
  return (
    <div class="slider">
      <label>
        <span class="hidden">Epoch</span>
        <input
          type="range"
          min={0}
          max={items.length - 1}
          value={index}
          aria-valuetext={`epoch ${chosen.epoch}`}
          onInput={(event) => go(Number(event.currentTarget.value))}
        />
      </label>
      <button type="button" aria-label="Previous epoch" disabled={index === 0} onClick={() => go(index - 1)}>
        ‹
      </button>
      <button type="button" aria-label="Next epoch" disabled={index === items.length - 1} onClick={() => go(index + 1)}>
        ›
      </button>
      <span class="where">
        {epoch === null ? "latest: " : ""}epoch {chosen.epoch}
        {chosen.committed_at && (
          <small>
            {" "}
            {moment(chosen.committed_at)}, <Age at={chosen.committed_at} />
          </small>
        )}
      </span>
      {epoch !== null && (
        <button type="button" onClick={() => choose({ epoch: null })}>
          Latest
        </button>
      )}
    </div>
  );
}

function BlameView({ blame }: { blame: Blame }) {
  const { change } = blame;
  return (
    <section class="blame" aria-labelledby="blame-title">
      <h3 id="blame-title">Last change</h3>
      <Facts
        items={[
          [
            "Epoch",
            <>
              <a href={`${link("applications", change.application)}?epoch=${change.epoch}`}>epoch {change.epoch}</a> of{" "}
              {change.application}, <Age at={change.at} />
            </>,
          ],
          ["Code", <><code>{blame.filename ?? "unknown"}</code>{blame.version !== null && `, version ${blame.version}`}, <code>{blame.artifact.slice(0, 12)}</code></>],
          ...Object.entries(blame.slices).map(([source, slice]): [string, preact.ComponentChildren] => [
            `Input ${source}`,
            <details>
              <summary>
                <bdi>{clipped(`${plain(slice.start as never)} to ${plain(slice.end as never)}`, 120)}</bdi>
                {slice.rows !== null && `, ${count(slice.rows, "row")}`}
              </summary>
              <pre tabIndex={0}>{JSON.stringify(slice.detail, null, 1).slice(0, 20_000)}</pre>
            </details>,
          ]),
          ...(blame.changes.length > 0 ? [["Changes", blame.changes.map((each) => each.kind).join(", ")] as [string, string]] : []),
        ]}
      />
    </section>
  );
}

function isNumber(type: string): boolean {
  return /^(tinyint|smallint|int|bigint|float|double|decimal)/.test(type);
}

function History(props: { history: KeyHistory; table: StateTable; visible: string[]; epoch: number | null }) {
  const { history, table, visible, epoch } = props;
  const numeric = table.value.filter((column) => !column.internal && isNumber(column.type)).map((column) => column.name);
  const asked = address.value.query.get("column");
  const column = numeric.find((name) => name === asked) ?? numeric[0];
  const changes = history.items;
  const ordered = [...changes].reverse();
  const single = table.sub_key.length === 0;
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
              {numeric.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
        )}
      </div>
      {single && column && ordered.length > 1 && (
        <Chart
          times={ordered.map((change) => change.at)}
          series={[{ label: column, unit: "", stepped: true, values: ordered.map((change) => (change.new?.[column] === null || change.new === null ? null : Number(change.new![column]))) }]}
          label={`${column} over ${count(ordered.length, "change")}; the table below has the values`}
          marker={marked?.at ?? null}
        />
      )}
      {changes.length === 0 ? (
        <p class="empty">The key has never had a row in the retained epochs.</p>
      ) : (
        <div class="scroll tall" tabIndex={0} role="group" aria-label="Changes of the key">
          <table>
            <caption class="hidden">Changes of the key, newest first</caption>
            <thead>
              <tr>
                <th scope="col">Epoch</th>
                <th scope="col">Time</th>
                {!single && table.sub_key.map((each) => <th key={each.name} scope="col">{each.name}</th>)}
                {visible.slice(0, 30).map((name) => (
                  <th key={name} scope="col" class={numeric.includes(name) ? "number" : ""}>
                    {name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {changes.map((change, index) => (
                <Change key={`${change.branch}/${change.epoch}/${index}`} change={change} columns={visible.slice(0, 30)} numeric={numeric} sub={single ? [] : table.sub_key.map((each) => each.name)} later={epoch !== null && change.epoch > epoch} current={change === marked} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {history.known_since && <p class="quiet caption">Changes before epoch {history.known_since.epoch} have expired.</p>}
    </section>
  );
}

function Change(props: { change: KeyChange; columns: string[]; numeric: string[]; sub: string[]; later: boolean; current: boolean }) {
  const { change } = props;
  return (
    <tr class={props.current ? "selected" : props.later ? "later" : ""}>
      <td>
        <button type="button" class="inline" onClick={() => choose({ epoch: String(change.epoch) })}>
          epoch {change.epoch}
        </button>
      </td>
      <td class="nowrap">{moment(change.at)}</td>
      {props.sub.map((name) => (
        <td key={name}>
          <bdi>{clipped(shown(change.key[name]), 60)}</bdi>
        </td>
      ))}
      {change.new === null ? (
        <td colSpan={props.columns.length} class="gone">
          {change.expired ? "expired" : "deleted"}
        </td>
      ) : (
        props.columns.map((name) => {
          const [before, after] = [change.old?.[name], change.new?.[name]];
          const differs = change.old !== null && JSON.stringify(before) !== JSON.stringify(after);
          return (
            <td key={name} class={`${props.numeric.includes(name) ? "number" : ""} ${differs ? "differs" : ""}`} title={differs ? `before: ${clipped(shown(before), 200)}` : ""}>
              <bdi>{clipped(shown(after), 60)}</bdi>
              {differs && props.numeric.includes(name) && before !== null && <small> {delta(Number(before), Number(after))}</small>}
            </td>
          );
        })
      )}
    </tr>
  );
}

function delta(before: number, after: number): string {
  const difference = after - before;
  const text = shown(Math.abs(difference) < 1000 ? Number(difference.toPrecision(3)) : difference);
  return difference > 0 ? `+${text}` : text.replace("-", "−");
}
