/** Propose a version: choose code and parameters, check it, try it out on the last epochs, and upgrade. */
import { useState } from "preact/hooks";
import { get, post, ProblemError, resource, upload, withQuery } from "../api/client";
import { project } from "../api/session";
import type { Artifact, Operation, Page, Preflight, Version } from "../api/types";
import { count } from "../model/format";
import { currentSettings, fieldOf, mergedSettings, settingsOf, type Settings } from "../model/settings";
import { consents, parametersOf, tally, type Consent, type Proposal } from "../model/versions";
import { address, choose, link, navigate } from "../router";
import { useData } from "../ui/data";
import { OperationStatus, useOperation } from "../ui/operation";
import { Age, CopyAs, Dialog, Field, Problem, say } from "../ui/parts";
import type { View } from "./application";
import { Report } from "./preflight";
import { upgradeCommands, type Sent } from "./upgrade_commands";
import { SettingsFields } from "./upgrade_settings";

const EPOCHS = 10;

/** The proposal of the address, so that a link shows the same one. Parameters and settings are in the fragment. */
function proposed(): Proposal {
  const { query, fragment } = address.value;
  const names = (name: string) => (query.get(name) ?? "").split(",").filter(Boolean);
  return { artifact: query.get("artifact"), parameters: fragment.get("parameters"), settings: (fragment.get("settings") ?? "").split("\n").filter(Boolean), changed: names("changed"), partial: names("partial"), dropped: names("dropped") };
}

/** A short name of a text, for the address. */
function digest(text: string): number {
  let sum = 7;
  for (let index = 0; index < text.length; index += 1) sum = (sum * 31 + text.charCodeAt(index)) >>> 0;
  return sum;
}

/** `merged`: with all settings, because a new version replaces them, while a preflight merges them over the current ones. */
function sent(proposal: Proposal, latest: Version, merged: boolean): Sent {
  const { artifact, changed, partial, dropped } = proposal;
  const body: Sent = { artifact, parameters: parametersOf(proposal.parameters), acceptance: { changed, partial } };
  const settings: Settings = settingsOf(proposal.settings);
  if (dropped.length > 0) {
    const allowed = (settings.allow_dropped_state as string[] | undefined) ?? latest.configuration.allow_dropped_state ?? [];
    settings.allow_dropped_state = [...new Set([...allowed, ...dropped])];
  }
  if (Object.keys(settings).length === 0) return body;
  return { ...body, configuration: merged ? mergedSettings(latest.configuration, settings) : settings };
}

/** A problem with the field of the form that it is about. */
interface Wrong {
  text: string;
  field: "parameters" | "settings" | null;
  setting: string | null;
}

function wrongOf(error: unknown): Wrong {
  const text = error instanceof Error ? error.message : String(error);
  return { text, ...(error instanceof ProblemError ? fieldOf(error.slug, text) : { field: null, setting: null }) };
}

/** What is wrong before anything is sent. */
function wrongIn(proposal: Proposal): Wrong | null {
  try {
    parametersOf(proposal.parameters);
  } catch (error) {
    return { text: (error as Error).message, field: "parameters", setting: null };
  }
  try {
    settingsOf(proposal.settings);
  } catch (error) {
    return { text: (error as Error).message, field: "settings", setting: null };
  }
  return null;
}

export function Upgrade({ application, reload, latest }: View & { latest: Version }) {
  const name = application.name;
  const proposal = proposed();
  const chosen = JSON.stringify(proposal);
  const [checked, setChecked] = useState<{ chosen: string; report: Preflight } | null>(null);
  const [problem, setProblem] = useState<Wrong | null>(null);
  const [busy, setBusy] = useState<string | null>(null);
  const [epochs, setEpochs] = useState(EPOCHS);
  const [upgrading, setUpgrading] = useState(false);
  const trialId = address.value.query.get("trial");
  const operation = useOperation(trialId);
  const tried = operation.value?.state === "succeeded" ? (operation.value.result as unknown as Preflight) : null;
  // A trial that another page links to may be of another proposal.
  const same = address.value.query.get("of") === String(digest(chosen));
  const current = checked?.chosen === chosen ? checked.report : null;
  const report = current ?? tried ?? checked?.report ?? null;
  const attempt = async (what: string, action: () => Promise<void>) => {
    setBusy(what);
    setProblem(null);
    try {
      await action();
    } catch (error) {
      setProblem(wrongOf(error));
    } finally {
      setBusy(null);
    }
  };
  const check = () =>
    attempt("Building the version and comparing it with the state", async () => {
      const now = proposed();
      const found = await post<Preflight>(resource(project.value, "preflight"), { application: name, ...sent(now, latest, false) });
      setChecked({ chosen: JSON.stringify(now), report: found });
      choose({ trial: null, of: null });
    });
  const tryOut = () =>
    attempt("Starting the trial", async () => {
      const begun = await post<Operation>(resource(project.value, "preflight"), { application: name, ...sent(proposed(), latest, false), trial: epochs });
      setChecked(null);
      choose({ trial: begun.id, of: String(digest(JSON.stringify(proposed()))) });
    });
  /** Another proposal: reports of the previous one no longer count. */
  const propose = (query: Record<string, string | null>, fragment?: Record<string, string | null>) => {
    setProblem(null);
    choose({ trial: null, of: null, ...query }, fragment);
  };
  const accept = (consent: Consent, accepted: boolean) => {
    const names = proposal[consent.kind].filter((each) => each !== consent.name);
    const next = accepted ? [...names, consent.name] : names;
    propose({ [consent.kind]: next.length ? next.join(",") : null });
    void check();
  };
  const wrong = wrongIn(proposal);
  const at = (field: Wrong["field"]) => [wrong, problem].find((each) => each?.field === field) ?? null;
  const choices = report ? consents(report) : [];
  for (const kind of ["changed", "partial", "dropped"] as const) {
    for (const each of proposal[kind]) if (!choices.some((choice) => choice.kind === kind && choice.name === each)) choices.push({ kind, name: each, effect: each });
  }
  return (
    <section class="card" aria-labelledby="upgrade-title">
      <header class="title">
        <h2 id="upgrade-title">
          Upgrade <small>from version {latest.number}</small>
        </h2>
        <span class="push" />
        <CopyAs commands={() => upgradeCommands(name, proposal, wrong ? null : { preflight: sent(proposal, latest, false), version: sent(proposal, latest, true) }, epochs)} />
      </header>
      <div class="form">
        <Code latest={latest} artifact={proposal.artifact} propose={propose} fail={(text) => setProblem(text === null ? null : { text, field: null, setting: null })} />
        <div class="plain">
          <Field label="Parameters, as JSON" hint="They replace the parameters of the latest version.">
            <textarea
              rows={5}
              spellcheck={false}
              aria-invalid={at("parameters") !== null}
              value={proposal.parameters ?? JSON.stringify(latest.parameters, null, 1)}
              onChange={(event) => propose({}, { parameters: event.currentTarget.value })}
            />
          </Field>
          {at("parameters") && <p class="notice bad" role="alert">{at("parameters")!.text}</p>}
        </div>
      </div>
      <SettingsFields
        lines={proposal.settings}
        current={currentSettings(latest.configuration, latest.graph?.nodes ?? [])}
        problem={at("settings")}
        change={(lines) => propose({}, { settings: lines.length ? lines.join("\n") : null })}
      />
      {choices.length > 0 && (
        <fieldset class="choices">
          <legend>Accept by name, for this upgrade only</legend>
          {choices.map((consent) => (
            <label key={`${consent.kind} ${consent.name}`} class="check">
              <input
                type="checkbox"
                disabled={busy !== null}
                checked={proposal[consent.kind].includes(consent.name)}
                onChange={(event) => accept(consent, event.currentTarget.checked)}
              />
              <span>{consent.effect}</span>
            </label>
          ))}
        </fieldset>
      )}
      <div class="buttons">
        <button type="button" disabled={busy !== null || wrong !== null} onClick={() => void check()}>
          Check
        </button>
        <button type="button" disabled={busy !== null || wrong !== null || !application.head || operation.value?.state === "running"} onClick={() => void tryOut()}>
          Try out
        </button>
        <label class="choice">
          <span>on the last</span>
          <input type="number" min={1} max={1000} value={epochs} onInput={(event) => setEpochs(Number(event.currentTarget.value))} />
          <span>epochs</span>
        </label>
        <span class="push" />
        <button type="button" class="primary" disabled={busy !== null || !((same ? tried : null) ?? current)?.ok} onClick={() => setUpgrading(true)}>
          Upgrade
        </button>
      </div>
      {busy && <p class="loading" role="status">{busy}</p>}
      {at(null) && <p class="notice bad" role="alert">{at(null)!.text}</p>}
      {trialId && <OperationStatus data={operation} cancels />}
      {report && (
        <section class="part" aria-label="Report">
          <h3>
            {report.ok ? "The version can continue from the state" : "The version cannot continue from the state"}{" "}
            <small>
              {report.snapshot ? `compared with epoch ${report.snapshot.epoch}` : "no epoch is committed yet"}
              {!(tried && same) && !current && ", for another choice: check again"}
            </small>
          </h3>
          {report === tried && !tried?.ok && <p>The trial did not run, because the upgrade would be refused.</p>}
          <Report report={report} />
        </section>
      )}
      {upgrading && report && (
        <UpgradeDialog name={name} revision={application.revision} settings={proposal.settings} body={sent(proposal, latest, true)} report={report} running={application.state === "running"} close={() => setUpgrading(false)} reload={reload} />
      )}
    </section>
  );
}

function Code(props: {
  latest: Version;
  artifact: string | null;
  propose: (query: Record<string, string | null>) => void;
  fail: (text: string | null) => void;
}) {
  const { latest, artifact } = props;
  const path = resource(project.value, "artifacts");
  const data = useData(`artifacts ${path}`, (signal) => get<Page<Artifact>>(path, { limit: 100 }, signal));
  const [uploading, setUploading] = useState(false);
  const items = data.value?.items ?? [];
  const send = async (input: HTMLInputElement) => {
    const file = input.files?.[0];
    if (!file) return;
    setUploading(true);
    props.fail(null);
    try {
      const answer = await upload<Artifact>(withQuery(path, { filename: file.name }), file);
      data.reload();
      props.propose({ artifact: answer.sha256 });
      say(`${answer.filename} is uploaded.`);
    } catch (error) {
      props.fail(error instanceof Error ? error.message : String(error));
    } finally {
      input.value = "";
      setUploading(false);
    }
  };
  const found = items.find((each) => each.sha256 === (artifact ?? latest.artifact));
  return (
    <div class="plain">
      <Field label="Code">
        <select value={artifact ?? ""} onChange={(event) => props.propose({ artifact: event.currentTarget.value || null })}>
          <option value="">Code of version {latest.number}</option>
          {artifact !== null && !found && <option value={artifact}>{artifact.slice(0, 12)}</option>}
          {items
            .filter((each) => each.sha256 !== latest.artifact)
            .map((each) => (
              <option key={each.sha256} value={each.sha256}>
                {each.filename} {each.sha256.slice(0, 12)}
              </option>
            ))}
        </select>
      </Field>
      {found && (
        <p class="caption quiet">
          <code>{found.filename}</code>, {count(found.bytes, "byte")}, uploaded <Age at={found.created_at} />
        </p>
      )}
      <Field label="Or upload a file" hint={uploading ? "Uploading" : "A Python file or a zip"}>
        <input type="file" accept=".py,.zip" disabled={uploading} onChange={(event) => void send(event.currentTarget)} />
      </Field>
      <Problem problem={data.problem} retry={data.reload} />
    </div>
  );
}

function UpgradeDialog(props: { name: string; revision: string; settings: string[]; body: Sent; report: Preflight; running: boolean; close: () => void; reload: () => void }) {
  const { name, report } = props;
  const [message, setMessage] = useState("");
  const [created, setCreated] = useState<Version | null>(null);
  const tables = tally(report);
  // Unchanged settings are those of this revision: a change of another person must not be overwritten.
  const [seen] = useState(props.revision);
  return (
    <Dialog
      title={`Upgrade ${name}`}
      action="Upgrade"
      danger={tables.dropped > 0}
      close={() => {
        props.close();
        props.reload();
        if (created) navigate(`${link("applications", name, "versions")}?version=${created.number}`);
      }}
      onSubmit={async () => {
        const version = await post<Version>(resource(project.value, "applications", name, "versions"), { ...props.body, message: message || null }, { "if-match": `"${seen}"` });
        say(version.operation ? `Version ${version.number} takes over at an epoch boundary.` : `Version ${version.number} is used at the next start.`);
        setCreated(version);
        navigate(`${link("applications", name, "versions")}?version=${version.number}`);
      }}
    >
      <p>
        {report.restarts
          ? "The driver stops and starts with the new version. "
          : props.running
            ? "The new version takes over at an epoch boundary, without a restart. If its first epoch fails, the current version continues. "
            : "The next start uses the new version. "}
        {count(tables.kept, "state table")} kept, {tables.added} added, {tables.dropped} removed.
      </p>
      {props.settings.length > 0 && <p>Settings that change: <code>{props.settings.join(" ")}</code></p>}
      {consents(report).length > 0 && (
        <ul>
          {consents(report).map((each) => (
            <li key={`${each.kind} ${each.name}`}>{each.effect}</li>
          ))}
        </ul>
      )}
      <Field label="Message (optional)">
        <input value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
      </Field>
    </Dialog>
  );
}
