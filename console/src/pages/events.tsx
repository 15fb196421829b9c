/** Events as they arrive, while this page is open. */
import { useState } from "preact/hooks";
import { KINDS, liveState, received, type LiveEvent } from "../api/events";
import { resource } from "../api/client";
import { project } from "../api/session";
import type { Application } from "../api/types";
import { curl, literal, python } from "../model/commands";
import { clipped, clock } from "../model/format";
import { address, choose, link } from "../router";
import { CopyAs, State } from "../ui/parts";

export default function Events({ application }: { application?: Application }) {
  const kind = address.value.query.get("kind");
  const [words, setWords] = useState("");
  const events = received.value.filter(
    (event) =>
      (!application || event.application === application.name) &&
      (!kind || event.kind === kind) &&
      (words === "" || JSON.stringify(event.data).toLowerCase().includes(words.toLowerCase())),
  );
  const path = application ? resource(project.value, "applications", application.name, "events") : resource(project.value, "events");
  const address_ = `${location.origin}${path}`;
  return (
    <>
      <header class="title">
        {application ? <h2>Events</h2> : <h1>Events</h1>}
        <State name={liveState.value} />
        <span class="push" />
        <label class="choice">
          <span>Kind</span>
          <select value={kind ?? ""} onChange={(event) => choose({ kind: event.currentTarget.value || null })}>
            <option value="">all</option>
            {KINDS.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </label>
        <input type="search" data-search aria-label="Find in events" placeholder="Find in events" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
        <CopyAs
          commands={() => ({
            cli: `curl -N -H "Authorization: Bearer $EPOCHAL_TOKEN" ${address_}`,
            curl: `${curl(path).replace("curl ", "curl -N ")}`,
            python: python(project.value, application ? `next(client.application(${literal(application.name)}).events())` : "next(client.events())"),
          })}
        />
      </header>
      <section class="card flush" aria-label="Events, newest first">
        {events.length === 0 ? (
          <p class="empty">No event since this page was opened. Events appear here as they happen.</p>
        ) : (
          <ol class="events">
            {events.map((event) => (
              <li key={event.id}>
                <details>
                  <summary>
                    <time dateTime={event.at}>{clock(event.at)}</time>
                    <span class="kind">{event.kind}</span>
                    <b>{event.application ?? "store"}</b>
                    <span class="grow">{clipped(summary(event), 140)}</span>
                  </summary>
                  {event.application && (
                    <p>
                      <a href={link("applications", event.application)}>{event.application}</a>
                    </p>
                  )}
                  <pre tabIndex={0}>{JSON.stringify(event.data, null, 1)}</pre>
                </details>
              </li>
            ))}
          </ol>
        )}
      </section>
    </>
  );
}

function summary({ kind, data }: LiveEvent): string {
  const state = String(data.state ?? "");
  if (kind === "epoch") {
    const rows = typeof data.rows_in === "number" ? `, ${data.rows_in} rows in, ${Number(data.rows_out ?? 0)} rows out` : "";
    return `epoch ${String(data.epoch)} ${state}${rows}`;
  }
  if (kind === "execution") {
    const failure = data.failure as { message?: string } | null;
    return `attempt ${String(data.attempt)} ${state}${failure ? `: ${failure.message}` : ""}`;
  }
  if (kind === "operation") return `${String(data.kind)} ${state}`;
  if (kind === "savepoint") return `${String(data.name)} is epoch ${String(data.epoch)}`;
  if (kind === "transaction") {
    if (state === "decided") return `sink ${String(data.sink)}, epoch ${String(data.epoch)}: ${String(data.action)} by ${String(data.by)}`;
    return `sink ${String(data.sink)} is ${state}${typeof data.blocked_since === "string" ? ` since ${clock(data.blocked_since)}` : ""}`;
  }
  return clipped(JSON.stringify(data), 140);
}
