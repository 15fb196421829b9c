/** Garbage collections of the whole store: what the next one deletes and keeps, and the previous ones. For administrators of the installation. */
import { useState } from "preact/hooks";
import { get, post } from "../api/client";
import type { CollectionPlan, Operation, Page, Schemas } from "../api/types";
import { curl, epochal, python } from "../model/commands";
import { bytes, count, duration } from "../model/format";
import { link } from "../router";
import { useData } from "../ui/data";
import { Age, CopyAs, Dialog, Loading, Problem, say, State } from "../ui/parts";

type Amount = Schemas["AmountAnswer"];
/** Members of the result of a collection that are shown. */
interface Collected {
  snapshots: number;
  deleted: Amount;
  needed: Amount;
}

export function Collections() {
  const [planned, setPlanned] = useState(false);
  const data = useData(
    "collections",
    async (signal) => (await get<Page<Operation>>("/v1/operations", { limit: 200 }, signal)).items.filter((each) => each.kind === "collect"),
    (event) => event.kind === "operation",
  );
  const items = data.value ?? [];
  return (
    <section class="card" aria-labelledby="collections-title">
      <header class="title">
        <h2 id="collections-title">
          Collections <small>of the store of all applications</small>
        </h2>
        <span class="push" />
        <button type="button" onClick={() => setPlanned(true)}>
          Plan a collection
        </button>
        <CopyAs
          commands={() => ({
            cli: epochal("default", "gc", "--dry-run"),
            curl: curl("/v1/collections/plan", {}, {}),
            python: python("default", "client.store.plan_collection()"),
          })}
        />
      </header>
      <Problem problem={data.problem} retry={data.reload} />
      {data.value && items.length === 0 && <p class="empty">No collection was requested. The control plane collects automatically, every hour unless a setting changes it.</p>}
      {items.length > 0 && (
        <ul class="lines">
          {items.slice(0, 10).map((each) => {
            const result = each.result as unknown as Collected | null;
            return (
              <li key={each.id}>
                <State name={each.state} />
                <a href={`${link("operations")}?operation=${each.id}`}>
                  <Age at={each.created_at} />
                </a>
                <span class="grow">
                  {result ? `${amount(result.deleted)} of ${count(result.snapshots, "expired snapshot")} deleted, ${amount(result.needed)} needed` : (each.error?.detail ?? each.progress)}
                </span>
              </li>
            );
          })}
        </ul>
      )}
      {planned && <CollectDialog close={() => { setPlanned(false); data.reload(); }} />}
    </section>
  );
}

function amount(given: Amount): string {
  return `${count(given.files, "file")} (${bytes(given.bytes)})`;
}

function CollectDialog({ close }: { close: () => void }) {
  const plan = useData("collection plan", () => post<CollectionPlan>("/v1/collections/plan", {}));
  const value = plan.value;
  return (
    <Dialog
      wide
      danger
      title="Collect garbage"
      action={value ? `Delete ${amount(value.total)}` : "Delete"}
      disabled={!value}
      close={close}
      onSubmit={async () => {
        await post("/v1/collections", {});
        say("The collection has begun.");
      }}
    >
      <Problem problem={plan.problem} retry={plan.reload} />
      {!value && !plan.problem && <Loading what="the plan" />}
      {value && (
        <>
          <ul class="figures">
            <li><b>{bytes(value.total.bytes)}</b> in {count(value.total.files, "file")} to delete</li>
            <li><b>{bytes(value.needed.bytes)}</b> in {count(value.needed.files, "file")} that snapshots need</li>
            <li><b>{value.snapshots.length.toLocaleString("en")}</b> expired {value.snapshots.length === 1 ? "snapshot" : "snapshots"}</li>
            <li><b>{duration(value.grace_seconds * 1000)}</b> grace period</li>
          </ul>
          {value.problems.map((text) => <p key={text} class="notice bad">{text}</p>)}
          <Amounts title="Deleted" by={value.reasons} />
          <Amounts title="Kept, although no snapshot needs them" by={value.spared} />
          {Object.keys(value.foreign).length > 0 && <Amounts title="Folders that are not in the catalog, which are kept" by={value.foreign} />}
        </>
      )}
    </Dialog>
  );
}

function Amounts({ title, by }: { title: string; by: Record<string, Amount> }) {
  const items = Object.entries(by);
  return (
    <section class="plain">
      <h3>{title}</h3>
      {items.length === 0 ? <p class="quiet">No files.</p> : (
        <ul class="lines">
          {items.map(([why, given]) => (
            <li key={why}>
              <span class="grow">{why}</span>
              <span class="number">{amount(given)}</span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
