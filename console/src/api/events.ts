/**
 * The event stream of the project: one connection while the page is visible. It resumes after the last event; if some
 * events have expired meanwhile, every view reads its data again.
 */
import { signal } from "@preact/signals";
import { resource, problemOf, ProblemError, send } from "./client";
import { project, who } from "./session";
import { EventParser } from "./sse";

export interface LiveEvent {
  id: string;
  kind: string;
  at: string;
  application: string | null;
  data: Record<string, unknown>;
}

/** Kinds of events that are stored. */
export const KINDS = ["epoch", "execution", "savepoint", "operation", "straggler", "transaction"];
/**
 * Loads are not stored: they have no id, and each connection begins with the current load of every running application.
 * A load is replaced by the next one, so that the list of received events has none.
 */
export const LOAD = "load";

export type LiveState = "off" | "connecting" | "live" | "retrying";

export const liveState = signal<LiveState>("off");
/** The latest events that this page has received, newest first, without loads. */
export const received = signal<LiveEvent[]>([]);
const MOST_RECEIVED = 500;
const SILENCE_MS = 45_000;
/** Answers to an id that has expired (410), or that the control plane does not accept any more. */
const EXPIRED = [410, 404, 422];

/** `null`: events were missed, so everything may have changed. */
type Listener = (event: LiveEvent | null) => void;
const listeners = new Set<Listener>();

export function listen(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const OPENING_MS = 1000;

/** Number of the connection since which no event was missed. */
let connection = 0;
/** Ends when the first connection has begun or failed, or takes long. */
let opening: Promise<void> | null = null;
let endOpening: () => void = () => {};

/**
 * Views call this before they read: a reading that begins with the stream misses no event, and is not repeated when the
 * stream begins. Returns the number of the connection.
 */
export async function connected(): Promise<number> {
  await opening;
  return connection;
}

/** Whether events may have been missed since a reading under this connection. `null`: no reading has begun. */
export function missedSince(under: number | null): boolean {
  return under !== null && under !== connection;
}

let abort: AbortController | null = null;
let lastId: string | null = null;
/** Whether events may have been missed: the next connection then begins without an id, and views read again. */
let missed = false;

/** Open or close the stream, by the visibility of the page and the session. Call once. */
export function follow(): void {
  const update = () => (document.visibilityState === "visible" && who.value ? open() : close());
  document.addEventListener("visibilitychange", update);
  who.subscribe((now) => {
    if (!now) lastId = null;
    update();
  });
  project.subscribe(() => {
    close();
    lastId = null;
    received.value = [];
    update();
  });
}

function close(): void {
  endOpening();
  abort?.abort();
  abort = null;
  missed = true;
  liveState.value = "off";
}

function open(): void {
  if (abort !== null) return;
  abort = new AbortController();
  if (lastId === null) {
    const limit = setTimeout(() => endOpening(), OPENING_MS);
    opening = new Promise((resolve) => {
      endOpening = () => {
        clearTimeout(limit);
        opening = null;
        resolve();
      };
    });
  }
  void run(abort);
}

/** Every view reads its data again. */
function readAgain(): void {
  connection += 1;
  tell(null);
}

async function run(own: AbortController): Promise<void> {
  let wait = 1000;
  let first = true;
  while (!own.signal.aborted) {
    liveState.value = first ? "connecting" : "retrying";
    try {
      await read(own);
      wait = 1000;
    } catch (error) {
      if (own.signal.aborted) return;
      if (error instanceof ProblemError) {
        if (error.status === 401) return;
        if (EXPIRED.includes(error.status) && lastId !== null) {
          // The next connection begins now; `missed` makes the views read what happened until then.
          lastId = null;
          missed = true;
          continue;
        }
        // The control plane refuses only the stream, such as 429: views are read again with each attempt.
        if (error.status > 0) readAgain();
      }
    }
    endOpening();
    first = false;
    missed ||= lastId === null;
    if (own.signal.aborted) return;
    liveState.value = "retrying";
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, 10_000);
  }
}

async function read(own: AbortController): Promise<void> {
  const once = new AbortController();
  own.signal.addEventListener("abort", () => once.abort(), { once: true });
  const headers: Record<string, string> = { accept: "text/event-stream" };
  if (lastId !== null) headers["last-event-id"] = lastId;
  const kinds = new URLSearchParams([...KINDS, LOAD].map((kind) => ["kind", kind]));
  const response = await send("GET", `${resource(project.value, "events")}?${kinds}`, headers, undefined, once.signal);
  if (!response.ok || response.body === null) throw await problemOf(response);
  liveState.value = "live";
  // The stream has begun, so that no event after this reading is missed.
  if (lastId === null && missed) readAgain();
  missed = false;
  endOpening();
  const parser = new EventParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let silence = setTimeout(() => once.abort(), SILENCE_MS);
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(() => once.abort(), SILENCE_MS);
      for (const event of parser.push(value)) {
        if (event.id) lastId = event.id;
        const data = JSON.parse(event.data) as Record<string, unknown>;
        tell({
          id: event.id,
          kind: event.kind,
          at: String(data.at ?? ""),
          application: typeof data.application === "string" ? data.application : null,
          data,
        });
      }
    }
  } finally {
    clearTimeout(silence);
  }
}

function tell(event: LiveEvent | null): void {
  if (event !== null && event.kind !== LOAD) received.value = [event, ...received.value].slice(0, MOST_RECEIVED);
  for (const listener of [...listeners]) listener(event);
}
