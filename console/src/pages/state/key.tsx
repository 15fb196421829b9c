/** One key: its value as of an epoch, what changed it, and its history. */
import { useState } from "preact/hooks";
import type { StateTable } from "../../api/types";
import { questionPath, type Looked } from "../../model/commands";
import { addressOf } from "../../model/keys";
import { clip } from "../../model/values";
import { address, choose } from "../../router";
import { useData } from "../../ui/data";
import { Loading, Problem } from "../../ui/parts";
import { BlameView } from "./blame";
import { CopyKey } from "./copy";
import { History } from "./history";
import { isCommitOf, readBlame, readHistory, readValue, useKept } from "./reading";
import { Cell } from "./rows";
import { EpochSlider } from "./slider";
import { Value } from "./value";

export function KeyView({ table, asked }: { table: StateTable; asked: Looked }) {
  const { application, epoch, values } = asked;
  const [older, setOlder] = useState(0);
  const committed = isCommitOf(application);
  const anyTime: Looked = { ...asked, epoch: null };
  const value = useData(questionPath("value", asked), (signal) => readValue(asked, signal), (event) => epoch === null && committed(event));
  const blame = useData(questionPath("blame", asked), (signal) => readBlame(asked, signal), (event) => epoch === null && committed(event));
  const history = useData(`${questionPath("history", anyTime)} ${older}`, (signal) => readHistory(anyTime, table, older, signal), committed);
  const shown = useKept(value);
  const changed = useKept(blame);
  const changes = useKept(history);
  const single = values.length === addressOf(table).length && !value.value?.entries && !value.value?.instances;
  const refused = value.problem !== null && [400, 422].includes(value.problem.status);
  return (
    <section class="card key-view" aria-labelledby="key-title">
      <header class="title">
        <h2 id="key-title" class="keyname" title={values.every((part) => part !== null && part.length < 60) ? undefined : clip(values.join(", "), 2000)}>
          {values.map((part, index) => (
            <span key={index}>
              {index > 0 && ", "}
              <Cell value={part} most={120} />
            </span>
          ))}
        </h2>
        <span class="push" />
        {values.length > table.key.length && table.sub_key.length > 0 && (
          <button type="button" onClick={() => choose({}, { key: ownerText(asked, table) })}>
            All entries of the key
          </button>
        )}
        <CopyKey asked={asked} />
        <button type="button" onClick={() => choose({}, { key: null })}>
          Close<span class="hidden"> the key</span>
        </button>
      </header>
      <EpochSlider name={application} />
      <Problem problem={value.problem} {...(refused ? {} : { retry: value.reload })} />
      {shown.value === undefined && !value.problem && <Loading what="the value" />}
      <div class={shown.stale ? "stale" : ""} aria-busy={shown.stale}>
        {shown.value === null && <p class="empty">The key has no row {epoch ? `as of epoch ${epoch}` : "now"}.</p>}
        {shown.value && <Value value={shown.value} table={table} />}
      </div>
      {changed.value && <BlameView blame={changed.value} table={table} />}
      {!refused && <Problem problem={history.problem} retry={history.reload} />}
      {changes.value === undefined && !history.problem && <Loading what="the history of the key" />}
      {changes.value && (
        <History history={changes.value} table={table} single={single} epoch={epoch === null ? null : Number(epoch)} older={() => setOlder(older + 1)} stale={changes.stale} />
      )}
    </section>
  );
}

function ownerText(asked: Looked, table: StateTable): string {
  return (address.value.fragment.get("key") ?? "").split(",").slice(0, asked.values.length > table.key.length ? table.key.length : undefined).join(",");
}
