/** State tables of an application. The parts of the page are in `state/`. */
import { useState } from "preact/hooks";
import { get, resource } from "../api/client";
import { project } from "../api/session";
import type { Page, StateTable } from "../api/types";
import { count } from "../model/format";
import { address, link } from "../router";
import { useData } from "../ui/data";
import { Loading, Problem } from "../ui/parts";
import type { View } from "./application";
import { isCommitOf } from "./state/reading";
import { Table } from "./state/table";

const MANY = 12;

export default function StatePage({ application }: View) {
  const name = application.name;
  const path = resource(project.value, "applications", name, "state");
  const tables = useData(`tables ${path}`, (signal) => get<Page<StateTable>>(path, { limit: 500 }, signal), isCommitOf(name));
  const items = tables.value?.items ?? [];
  const [words, setWords] = useState("");
  const wanted = address.value.query.get("table");
  const table = items.find((each) => each.table === wanted) ?? items.find((each) => each.queryable) ?? items[0];
  const listed = words ? items.filter((each) => each.table.toLowerCase().includes(words.toLowerCase())) : items;
  return (
    <>
      <Problem problem={tables.problem?.status === 409 || tables.problem?.status === 404 ? null : tables.problem} retry={tables.reload} />
      {tables.problem && [404, 409].includes(tables.problem.status) && <p class="empty">{tables.problem.message}</p>}
      {!tables.value && !tables.problem && <Loading what="state tables" />}
      {tables.value && items.length === 0 && <p class="empty">The application has no state tables.</p>}
      {table && (
        <div class="state-page">
          <nav class="tables" aria-label="State tables">
            {items.length > MANY && <input type="search" aria-label="Find a table" placeholder="Find a table" value={words} onInput={(event) => setWords(event.currentTarget.value)} />}
            {listed.slice(0, 200).map((each) => (
              <a key={each.table} href={`${link("applications", name, "state")}?table=${encodeURIComponent(each.table)}`} aria-current={each === table ? "page" : undefined}>
                <b>
                  <bdi>{each.table}</bdi>
                </b>
                <small>
                  {each.kind}
                  {each.rows !== null ? `, ${count(each.rows, "row")}` : each.queryable ? "" : ", not queryable"}
                </small>
              </a>
            ))}
          </nav>
          <Table key={table.table} name={name} table={table} />
        </div>
      )}
    </>
  );
}
