/** Epochs of an application: rows and durations as charts, and a timeline whose rows open to the steps of an epoch. */
import { useState } from "preact/hooks";
import { get } from "../api/client";
import type { Epoch, EpochPage } from "../api/types";
import { lengthOf } from "../model/epochs";
import { bytes, count, duration, short } from "../model/format";
import { address, choose } from "../router";
import { Chart } from "../ui/chart";
import { now, useData } from "../ui/data";
import { Age, Loading, Problem, State } from "../ui/parts";
import { EpochDetails } from "./epoch_details";

export const SHOWN_EPOCHS = 100;
const FIRST_EPOCHS = 20;
const WRITTEN = "Rows of the state that the epoch has changed, and bytes of the files that it has written for them. The graph has the size of all files.";

export function Rates({ epochs }: { epochs: Epoch[] }) {
  const done = epochs.filter((epoch) => epoch.state === "committed" && epoch.committed_at && epoch.rows_in !== null).reverse();
  if (done.length < 2) return null;
  const times = done.map((epoch) => epoch.committed_at!);
  const lengths = done.map((epoch) => (lengthOf(epoch) ?? 0) / 1000);
  return (
    <div class="pair">
      <section class="card" aria-labelledby="rows-title">
        <h2 id="rows-title">
          Rows read <small>by epoch</small>
        </h2>
        <Chart times={times} series={[{ label: "Rows", unit: "", values: done.map((epoch) => epoch.rows_in ?? 0) }]} label={`Rows read in each of the last ${count(done.length, "epoch")}`} height={130} format={short} />
      </section>
      <section class="card" aria-labelledby="length-title">
        <h2 id="length-title">
          Duration <small>by epoch, until its sinks have committed</small>
        </h2>
        <Chart times={times} series={[{ label: "Duration", unit: "", values: lengths }]} label={`Duration of the last ${count(done.length, "epoch")}`} height={130} format={(value) => duration(value * 1000)} />
      </section>
    </div>
  );
}

export function Timeline(props: { name: string; epochs: Epoch[]; page: EpochPage | undefined; path: string; reload: () => void }) {
  const { epochs, page, path } = props;
  const [older, setOlder] = useState<{ path: string; items: Epoch[]; cursor: string | null }>({ path: "", items: [], cursor: null });
  const opened = address.value.query.get("epoch");
  const known = new Set(epochs.map((epoch) => `${epoch.branch}/${epoch.epoch}`));
  const rest = older.items.filter((epoch) => !known.has(`${epoch.branch}/${epoch.epoch}`));
  const position = [...epochs, ...rest].findIndex((epoch) => String(epoch.epoch) === opened);
  const [few, setFew] = useState(position < FIRST_EPOCHS);
  const linked = useData(`epoch ${path} ${opened} ${page !== undefined && position < 0}`, async (signal) =>
    opened && page && position < 0 ? get<Epoch>(`${path}/${encodeURIComponent(opened)}`, {}, signal) : null,
  );
  const shownEpochs = [...epochs, ...rest].slice(0, few ? FIRST_EPOCHS : undefined);
  const all = linked.value && position < 0 ? [linked.value, ...shownEpochs] : shownEpochs;
  const most = Math.max(...all.map((epoch) => lengthOf(epoch) ?? 0), 1);
  const cursor = older.path === path ? older.cursor : page?.next_cursor;
  const more = async () => {
    const next = await get<EpochPage>(path, { limit: SHOWN_EPOCHS, cursor });
    setOlder((before) => ({ path, items: [...before.items, ...next.items], cursor: next.next_cursor }));
  };
  return (
    <section class="card flush" aria-labelledby="epochs-title">
      <h2 id="epochs-title">
        Epochs <small>newest first; open one for its steps</small>
      </h2>
      <Problem problem={linked.problem} />
      {page === undefined ? (
        <Loading what="epochs" />
      ) : all.length === 0 ? (
        <p class="empty">No epoch yet. The first one takes some seconds longer, because Spark compiles its plan.</p>
      ) : (
        <div class="epochs">
          <div class="epochrow head" aria-hidden="true">
            <span>Epoch</span>
            <span>State</span>
            <span class="wide">Time</span>
            <span>Rows in, out</span>
            <span class="wide" title={WRITTEN}>State written</span>
            <span>Committed</span>
          </div>
          {all.map((epoch) => (
            <EpochRow key={`${epoch.branch}/${epoch.epoch}`} epoch={epoch} most={most} open={opened === String(epoch.epoch)} name={props.name} reload={props.reload} />
          ))}
          {!few && page.folded?.map((range) => (
            <p key={`${range.branch}/${range.first}`} class="folded">
              Epochs {range.first} to {range.last} have expired: {count(range.rows_in, "row")} in.
            </p>
          ))}
        </div>
      )}
      {(cursor || (few && epochs.length > FIRST_EPOCHS)) && (
        <p class="more">
          <button type="button" onClick={() => (few ? setFew(false) : void more())}>
            Show older epochs
          </button>
        </p>
      )}
    </section>
  );
}

function EpochRow(props: { epoch: Epoch; most: number; open: boolean; name: string; reload: () => void }) {
  const { epoch, most, open } = props;
  const started = Date.parse(epoch.started_at);
  const running = (epoch.prepared_at ? Date.parse(epoch.prepared_at) : epoch.state === "started" ? Math.max(now.value, started) : started) - started;
  const publishing = epoch.prepared_at && epoch.committed_at ? Date.parse(epoch.committed_at) - Date.parse(epoch.prepared_at) : 0;
  const total = running + publishing;
  const share = (ms: number) => `${Math.min(100, (ms / Math.max(most, total)) * 100)}%`;
  return (
    <div class={`epoch ${epoch.state}`}>
      <button
        type="button"
        class="epochrow"
        aria-expanded={open}
        onClick={() => choose({ epoch: open ? null : String(epoch.epoch) })}
      >
        <span class="number">{epoch.epoch}</span>
        <span>
          <State name={epoch.state} />
        </span>
        <span class="wide bar" title={`${duration(running)} until prepared, ${duration(publishing)} until committed`}>
          <i class="run" style={{ width: share(running) }} />
          <i class="publish" style={{ width: share(publishing) }} />
          <b>{total > 0 ? duration(total) : ""}</b>
        </span>
        <span class="number">
          {epoch.rows_in === null || epoch.rows_in === undefined ? "" : `${short(epoch.rows_in)} in, ${short(epoch.rows_out ?? 0)} out`}
        </span>
        <span class="wide number" title={WRITTEN}>{epoch.state_rows === null || epoch.state_rows === undefined ? "" : `${short(epoch.state_rows)} rows, ${bytes(epoch.state_bytes ?? 0)}`}</span>
        <span>
          <Age at={epoch.committed_at ?? epoch.prepared_at ?? epoch.started_at} />
        </span>
        {epoch.failure && <span class="cause">{epoch.failure.message}</span>}
      </button>
      {open && <EpochDetails name={props.name} epoch={epoch} reload={props.reload} />}
    </div>
  );
}
