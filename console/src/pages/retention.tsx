/** Retention of an application: what keeps which snapshot, pins and savepoints, and collections of the store. */
import { useState } from "preact/hooks";
import { get, post, remove, resource } from "../api/client";
import { administers, may, project } from "../api/session";
import type { Application, Lineage, Operation, Page, Savepoint, Tag, Transaction } from "../api/types";
import { curl, epochal, literal, python } from "../model/commands";
import { clipped, count, duration } from "../model/format";
import { holders, stored, type Holder } from "../model/retention";
import { link } from "../router";
import { useData } from "../ui/data";
import { Age, CopyAs, Dialog, Facts, Field, Loading, Problem, say } from "../ui/parts";
import type { View } from "./application";
import { Collections } from "./collections";
import { pinsOf } from "./snapshot";

export default function Retention({ application }: View) {
  return (
    <>
      <Holders application={application} />
      {administers() && <Collections />}
    </>
  );
}

async function read(application: Application, signal: AbortSignal) {
  const base = resource(project.value, "applications", application.name);
  const [lineage, pins, savepoints, tags, transactions, operations] = await Promise.all([
    get<Lineage>(`${base}/lineage`, { fold: true, slices: false, limit: 500 }, signal),
    pinsOf(application.name, signal),
    get<Page<Savepoint>>(`${base}/savepoints`, { limit: 500 }, signal),
    get<Page<Tag>>(`${base}/tags`, { limit: 500 }, signal),
    get<{ items: Transaction[] }>(`${base}/transactions`, {}, signal),
    get<Page<Operation>>(resource(project.value, "operations"), { application: application.name, limit: 100 }, signal),
  ]);
  return {
    whole: lineage.next_cursor === null,
    stored: stored(application.name, lineage.nodes),
    holders: holders(application.name, {
      lineage, pins, savepoints: savepoints.items, tags: tags.items, transactions: transactions.items, operations: operations.items,
      head: application.head?.epoch ?? null,
    }),
  };
}

const KINDS: Record<Holder["kind"], [string, string]> = {
  latest: ["Latest epoch", "Always kept."],
  sink: ["Sink", "A sink has not committed the epoch."],
  pin: ["Pin", "Until it is unpinned."],
  savepoint: ["Savepoint", "Until it is deleted."],
  fork: ["Fork", "Until the fork is deleted."],
  rollback: ["Rollback", "A rollback continues from it."],
  import: ["Import", "An import is based on it."],
  operation: ["Operation", "Until the operation ends."],
  tag: ["Tag", "A name only: it does not keep the snapshot."],
};

function Holders({ application }: { application: Application }) {
  const name = application.name;
  const base = resource(project.value, "applications", name);
  const [pinning, setPinning] = useState(false);
  const [releasing, setReleasing] = useState<Holder | null>(null);
  const data = useData(
    `retention ${base} ${application.head === null ? "" : "head"}`,
    (signal) => read(application, signal),
    (event) => event.application === name && (event.kind === "savepoint" || event.kind === "operation"),
  );
  const value = data.value;
  const settings = application.configuration;
  const of = (kind: Holder["kind"]) => value?.holders.filter((each) => each.kind === kind).length ?? 0;
  return (
    <section class="card" aria-labelledby="retention-title">
      <header class="title">
        <h2 id="retention-title">Retained snapshots</h2>
        <span class="push" />
        {may("operator") && application.head && (
          <button type="button" class="primary" onClick={() => setPinning(true)}>
            Pin an epoch
          </button>
        )}
        <CopyAs
          commands={() => ({
            cli: epochal(project.value, "lineage", name),
            curl: curl(`${base}/pins`),
            python: python(project.value, `client.application(${literal(name)}).annotations.pins()`),
          })}
        />
      </header>
      <Facts
        items={[
          [
            "Settings",
            `the last ${count(settings.retained_epochs, "epoch")}${settings.retained_seconds === null || settings.retained_seconds === undefined ? "" : `, if they are younger than ${duration(settings.retained_seconds * 1000)}`}`,
          ],
        ]}
      />
      <Problem problem={data.problem} retry={data.reload} />
      {!value && !data.problem && <Loading what="what keeps snapshots" />}
      {value && (
        <>
          <ul class="figures">
            <li>
              <b>{value.stored.epochs.toLocaleString("en")}{value.whole ? "" : " or more"}</b> {value.stored.epochs === 1 ? "epoch" : "epochs"} in the store
              {value.stored.oldest && `, the oldest is ${value.stored.oldest.first}`}
            </li>
            <li><b>{of("pin")}</b> {of("pin") === 1 ? "pin" : "pins"}</li>
            <li><b>{of("savepoint")}</b> {of("savepoint") === 1 ? "savepoint" : "savepoints"}</li>
            <li><b>{of("fork")}</b> {of("fork") === 1 ? "fork" : "forks"}</li>
          </ul>
          <div class="scroll tall" tabIndex={0} role="group" aria-label="What keeps which snapshot">
            <table>
              <thead>
                <tr>
                  <th scope="col">Snapshot</th>
                  <th scope="col">Kept by</th>
                  <th scope="col">Message</th>
                  <th scope="col">Since</th>
                  {may("operator") && <th scope="col"><span class="hidden">Action</span></th>}
                </tr>
              </thead>
              <tbody>
                {value.holders.map((each) => (
                  <tr key={`${each.kind} ${each.branch} ${each.epoch} ${each.name}`}>
                    <td class="nowrap">
                      <a href={`${link("applications", name, "lineage")}?pick=${each.epoch}`}>epoch {each.epoch}</a>
                    </td>
                    <td>
                      <b>{KINDS[each.kind][0]}</b>{" "}
                      {each.kind === "fork" && each.name !== null ? <a class="under" href={link("applications", each.name)}>{each.name}</a> : <bdi>{each.kind === "rollback" ? "" : each.name}</bdi>}
                      <br />
                      <small>{KINDS[each.kind][1]}</small>
                    </td>
                    <td><bdi>{clipped(each.message ?? "", 300)}</bdi></td>
                    <td class="nowrap">
                      {each.at && <Age at={each.at} />}
                      {each.by && <small> {each.by}</small>}
                    </td>
                    {may("operator") && (
                      <td>
                        {(each.kind === "pin" || each.kind === "savepoint") && (
                          <button type="button" onClick={() => setReleasing(each)}>
                            {each.kind === "pin" ? "Unpin" : "Delete"}
                            <span class="hidden"> {each.kind === "pin" ? `epoch ${each.epoch}` : each.name}</span>
                          </button>
                        )}
                      </td>
                    )}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <p class="caption quiet">
            A snapshot is kept with every file that is needed to read and continue it. All others expire, and the next
            collection deletes their files after a grace period.
          </p>
        </>
      )}
      {pinning && <PinDialog application={application} close={() => { setPinning(false); data.reload(); }} />}
      {releasing && (
        <Dialog
          title={releasing.kind === "pin" ? `Unpin epoch ${releasing.epoch}` : `Delete savepoint ${releasing.name}`}
          action={releasing.kind === "pin" ? "Unpin" : "Delete"}
          danger
          close={() => { setReleasing(null); data.reload(); }}
          onSubmit={async () => {
            await remove(releasing.kind === "pin" ? `${base}/snapshots/${releasing.epoch}/pin` : `${base}/savepoints/${encodeURIComponent(releasing.name ?? "")}`);
            say(releasing.kind === "pin" ? `Epoch ${releasing.epoch} is unpinned.` : `Savepoint ${releasing.name} is deleted.`);
          }}
        >
          <p>{consequence(releasing, value?.holders ?? [], application)}</p>
        </Dialog>
      )}
    </section>
  );
}

/** What happens to the snapshot without this pin or savepoint. */
function consequence(released: Holder, all: readonly Holder[], application: Application): string {
  const others = all.filter((each) => each !== released && each.kind !== "tag" && each.epoch === released.epoch && (each.branch ?? released.branch) === released.branch);
  const kept = application.configuration.retained_epochs;
  const begin = `Epoch ${released.epoch} is affected, with its state and the files that only it needs. `;
  if (others.length > 0) return `${begin}It remains kept by: ${others.map((each) => KINDS[each.kind][0].toLowerCase() + (each.name ? ` ${each.name}` : "")).join(", ")}.`;
  const behind = (application.head?.epoch ?? 0) - released.epoch;
  return behind < kept
    ? `${begin}It expires when ${count(kept, "later epoch")} are committed.`
    : `${begin}It is older than the last ${count(kept, "epoch")}: it expires now, and the next collection deletes it.`;
}

function PinDialog({ application, close }: { application: Application; close: () => void }) {
  const head = application.head?.epoch ?? 1;
  const [epoch, setEpoch] = useState(String(head));
  const [message, setMessage] = useState("");
  return (
    <Dialog
      title="Pin an epoch"
      action="Pin"
      close={close}
      onSubmit={async () => {
        await post(resource(project.value, "applications", application.name, "snapshots", epoch, "pin"), { message: message || null });
        say(`Epoch ${epoch} is pinned.`);
      }}
    >
      <p>The snapshot does not expire until it is unpinned.</p>
      <Field label="Epoch" hint={`At most ${head}`}>
        <input type="number" required min={1} max={head} value={epoch} onInput={(event) => setEpoch(event.currentTarget.value)} />
      </Field>
      <Field label="Reason (optional)">
        <input value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
      </Field>
    </Dialog>
  );
}
