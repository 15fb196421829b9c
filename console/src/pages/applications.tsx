/** All applications of the project: state, head and rate, live. */
import { useEffect, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { get, post, resource, type ProblemError } from "../api/client";
import { connected, listen, missedSince } from "../api/events";
import { may, project } from "../api/session";
import type { Application, Epoch, EpochPage, Lag, Page } from "../api/types";
import { curl, epochal, python } from "../model/commands";
import { lengthOf, rateOf, withEpoch } from "../model/epochs";
import { count, duration, rate } from "../model/format";
import { behind, waits } from "../model/lags";
import { address, choose, link } from "../router";
import { now, useData } from "../ui/data";
import { FirstSteps } from "./first_steps";
import { Age, CopyAs, Dialog, Loading, Problem, say, Sparkline, State, VirtualList } from "../ui/parts";
import { chosen, CHOICES, useLags } from "./applications_load";

const ROW = 68;

/** More than a window shows, and few enough to be there at once. */
const FIRST = 50;

async function all(signal: AbortSignal, begin: (value: Application[]) => void): Promise<Application[]> {
  const items: Application[] = [];
  let cursor: string | null = null;
  do {
    const limit = cursor === null ? FIRST : 500;
    const page: Page<Application> = await get(resource(project.value, "applications"), { limit, cursor }, signal);
    items.push(...page.items);
    cursor = page.next_cursor;
    begin([...items]);
  } while (cursor !== null);
  return items;
}

/** Latest epochs by application: read when a row is first shown, then kept up by events. */
const latest = signal<ReadonlyMap<string, Epoch[]>>(new Map());
const asked = new Set<string>();
const MOST = 30;

function store(name: string, epochs: Epoch[]): void {
  latest.value = new Map(latest.value).set(name, epochs.slice(0, MOST));
}

let queue: Promise<unknown> = Promise.resolve();
function ask(name: string): void {
  const key = `${project.value}/${name}`;
  if (asked.has(key)) return;
  asked.add(key);
  queue = queue.then(async () => {
    try {
      store(name, (await get<EpochPage>(resource(project.value, "applications", name, "epochs"), { limit: MOST })).items);
    } catch {
      asked.delete(key);
    }
  });
}

export function Applications() {
  const data = useData(`applications ${project.value}`, all, (event) => event.kind === "execution" || event.kind === "operation");
  const lags = useLags();
  const words = address.value.query.get("text") ?? "";
  const choice = address.value.query.get("show") ?? "";
  const [stopping, setStopping] = useState<Application | null>(null);
  useEffect(() => {
    asked.clear();
    latest.value = new Map();
    let under: number | null = null;
    void connected().then((number) => (under = number));
    return listen((event) => {
      if (event === null) {
        if (!missedSince(under)) return;
        asked.clear();
        void connected().then((number) => (under = number));
        return;
      }
      const known = event.application === null ? undefined : latest.value.get(event.application);
      if (event.kind === "epoch" && event.application !== null && known) {
        store(event.application, withEpoch(known, event.data as unknown as Epoch));
      }
    });
  }, [project.value]);
  const items = data.value ?? [];
  const found = items.filter((item) => chosen(item, lags.get(item.name), choice, words, Date.now()));
  return (
    <>
      <header class="title">
        <h1>Applications</h1>
        {items.length > 0 && !data.partial && (
          <span class="quiet">
            {found.length < items.length ? `${count(found.length, "application")} of ${items.length}` : count(items.length, "application")}
          </span>
        )}
        <span class="push" />
        {(items.length > 1 || words !== "" || choice !== "") && (
          <>
            <label class="choice">
              <span>Show</span>
              <select value={choice} onChange={(event) => choose({ show: event.currentTarget.value || null })}>
                {CHOICES.map(([name, label]) => (
                  <option key={name} value={name}>
                    {label}
                  </option>
                ))}
              </select>
            </label>
            <input
              type="search"
              data-search
              aria-label="Find by name or state"
              placeholder="Name or state"
              value={words}
              onInput={(event) => choose({ text: event.currentTarget.value || null })}
            />
          </>
        )}
        <CopyAs
          commands={() => ({
            cli: epochal(project.value, "ps"),
            curl: curl(resource(project.value, "applications")),
            python: python(project.value, "client.applications.list()"),
          })}
        />
      </header>
      <Problem problem={data.problem} retry={data.reload} />
      {data.value === undefined || (data.partial && found.length === 0) ? (
        !data.problem && <Loading what="applications" />
      ) : items.length === 0 ? (
        <FirstSteps />
      ) : found.length === 0 ? (
        <p class="empty">No application matches.</p>
      ) : (
        <div class="card flush">
          <div class="approw head" aria-hidden="true">
            <span>Name</span>
            <span>State</span>
            <span>Head epoch</span>
            <span>Input, lag</span>
            <span>Epoch times</span>
            <span />
          </div>
          <VirtualList
            key={`${choice} ${words}`}
            class="apps"
            label="Applications"
            count={found.length}
            rowHeight={ROW}
            render={(index) => <Row key={found[index]!.name} application={found[index]!} lag={lags.get(found[index]!.name)} stop={setStopping} done={data.reload} />}
          />
        </div>
      )}
      {stopping && <StopDialog application={stopping} close={() => setStopping(null)} />}
    </>
  );
}

function Row(props: { application: Application; lag: Lag | undefined; stop: (application: Application) => void; done: () => void }) {
  const { application } = props;
  useEffect(() => ask(application.name), [application.name]);
  const epochs = latest.value.get(application.name) ?? [];
  const committed = epochs.find((epoch) => epoch.state === "committed");
  const head = committed && (!application.head || committed.epoch > application.head.epoch) ? committed : application.head;
  const recent = epochs.filter((epoch) => lengthOf(epoch) !== null).slice(0, 24).reverse();
  const lengths = recent.map((epoch) => lengthOf(epoch) ?? 0);
  const running = application.state === "running";
  const perSecond = running ? (props.lag?.rows_per_second ?? rateOf(epochs)) : null;
  const late = running && props.lag ? behind(props.lag) : null;
  const waiting = running ? waits(props.lag, now.value) : [];
  const from = application.parent ? `forked from ${application.parent.application} at epoch ${application.parent.epoch}` : null;
  const about = [`version ${application.version}`, from, application.shadow ? "shadow" : null].filter(Boolean).join(", ");
  const failure = application.failure ?? (application.state !== "stopped" ? application.restarts?.failure : null);
  return (
    <div class="approw" style={{ height: `${ROW}px` }}>
      <span class="name">
        <a href={link("applications", application.name)}>{application.name}</a>
        <small>{failure ? <b class="badtext">{failure.message}</b> : waiting.length > 0 ? <b class="waits">{waiting.join("; ")}</b> : about}</small>
      </span>
      <span>
        <State name={application.state} />
      </span>
      <span>
        {head ? (
          <>
            <a href={`${link("applications", application.name, "lineage")}?pick=${head.epoch}`}>epoch {head.epoch}</a>
            <small>{head.committed_at ? <Age at={head.committed_at} /> : "committed"}</small>
          </>
        ) : (
          <small>no epoch yet</small>
        )}
      </span>
      <span class="number">
        {perSecond === null ? <small>{running ? "no rate yet" : "not running"}</small> : rate(perSecond)}
        {late && <small class={late.late ? "waits" : ""}>{late.text}</small>}
      </span>
      <span class="wide">
        {lengths.length > 0 && (
          <>
            <Sparkline
              values={lengths}
              label={`Duration of the latest ${count(lengths.length, "epoch")}: at most ${duration(Math.max(...lengths))}`}
            />
            <small>at most {duration(Math.max(...lengths))}</small>
          </>
        )}
      </span>
      <span class="act">
        {may("operator") && (application.state === "running" || application.state === "starting") && (
          <button type="button" onClick={() => props.stop(application)}>
            Stop<span class="hidden"> {application.name}</span>
          </button>
        )}
        {may("operator") && ["stopped", "failed", "created"].includes(application.state) && !application.head?.drained && (
          <button type="button" onClick={() => void start(application.name).then(props.done)}>
            Start<span class="hidden"> {application.name}</span>
          </button>
        )}
      </span>
    </div>
  );
}

export async function start(name: string): Promise<void> {
  try {
    await post(resource(project.value, "applications", name, "start"));
    say(`${name} is starting.`);
  } catch (error) {
    say((error as ProblemError).message);
  }
}

export function StopDialog({ application, close }: { application: Application; close: () => void }) {
  const [savepoint, setSavepoint] = useState("");
  return (
    <Dialog
      title={`Stop ${application.name}`}
      action="Stop"
      danger
      close={close}
      onSubmit={async () => {
        await post(resource(project.value, "applications", application.name, "stop"), { savepoint: savepoint || null });
        say(`${application.name} is stopping.`);
      }}
    >
      <p>
        The current epoch is committed, and the driver ends. State can still be looked up
        {application.head ? `, as of epoch ${application.head.epoch} or later` : ""}. Sources are not read until the next
        start, which continues after the last epoch.
      </p>
      <label class="field">
        <span>Savepoint (optional)</span>
        <input
          value={savepoint}
          pattern="[a-z](?:[\-a-z0-9]{0,61}[a-z0-9])?"
          placeholder="before-maintenance"
          onInput={(event) => setSavepoint(event.currentTarget.value)}
        />
        <small>A name for the last epoch. A savepoint does not expire.</small>
      </label>
    </Dialog>
  );
}
