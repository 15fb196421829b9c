/** Calls of the public API. Every failure is a `ProblemError` with a text for users. */
import { ServerClock } from "../model/clock";

/** The clock of the control plane, by the header `Date` of its answers. */
export const serverClock = new ServerClock();

export class ProblemError extends Error {
  constructor(
    readonly status: number,
    readonly slug: string,
    detail: string,
    readonly request: string | null = null,
  ) {
    super(detail);
  }
}

/** Whether a problem may pass without a change by the caller: no answer, too many requests, a failing server. */
export function passes(problem: ProblemError): boolean {
  return problem.status === 0 || problem.status === 429 || problem.status >= 500;
}

/** Credentials of mutating and reading calls, set by the session. */
export interface Credentials {
  headers(mutates: boolean): Record<string, string>;
  rejected(): void;
}

let credentials: Credentials = { headers: () => ({}), rejected: () => {} };

export function useCredentials(next: Credentials): void {
  credentials = next;
}

export type Query = Record<string, string | number | boolean | null | undefined>;

/** The path of a resource in a project: `resource("default", "applications", "flights")`. */
export function resource(project: string, ...segments: string[]): string {
  const prefix = project === "default" ? "/v1" : `/v1/projects/${encodeURIComponent(project)}`;
  return [prefix, ...segments.map(encodeURIComponent)].join("/");
}

export function withQuery(path: string, query: Query = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  if (given.length === 0) return path;
  return `${path}?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`;
}

export async function get<Answer>(path: string, query: Query = {}, signal?: AbortSignal): Promise<Answer> {
  return call<Answer>("GET", withQuery(path, query), undefined, signal);
}

export async function post<Answer>(path: string, body: unknown = {}, headers: Record<string, string> = {}): Promise<Answer> {
  return call<Answer>("POST", path, body, undefined, headers);
}

export async function remove(path: string): Promise<void> {
  await call("DELETE", path);
}

/** Send a file as it is. */
export async function upload<Answer>(path: string, file: Blob): Promise<Answer> {
  const response = await send("POST", path, { accept: "application/json", "content-type": "application/octet-stream" }, file);
  if (!response.ok) throw await problemOf(response);
  return (await response.json()) as Answer;
}

/** One request with credentials. A failed connection has status 0. */
export async function send(
  method: string,
  path: string,
  headers: Record<string, string> = {},
  body?: string | Blob,
  signal?: AbortSignal,
): Promise<Response> {
  const mutates = method !== "GET";
  const sent = Date.now();
  try {
    const response = await fetch(path, {
      method,
      headers: { ...credentials.headers(mutates), ...headers },
      credentials: "same-origin",
      cache: "no-store",
      ...(body === undefined ? {} : { body }),
      ...(signal === undefined ? {} : { signal }),
    });
    serverClock.note(response.headers.get("date"), sent, Date.now());
    return response;
  } catch (error) {
    throw unanswered(error, mutates);
  }
}

/** A request without an answer. Whether it took effect is unknown, so that only reading ones are repeated. */
function unanswered(error: unknown, mutates: boolean): unknown {
  if (error instanceof DOMException && error.name === "AbortError") return error;
  const what = mutates
    ? "The control plane does not answer. It may have received the request: check before you repeat it."
    : "The control plane does not answer. The page tries again.";
  return new ProblemError(0, "unreachable", what);
}

async function call<Answer>(method: string, path: string, body?: unknown, signal?: AbortSignal, more: Record<string, string> = {}): Promise<Answer> {
  const headers: Record<string, string> = { accept: "application/json", ...more };
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await send(method, path, headers, body === undefined ? undefined : JSON.stringify(body), signal);
  if (!response.ok) throw await problemOf(response);
  try {
    return (response.status === 204 ? undefined : await response.json()) as Answer;
  } catch (error) {
    throw unanswered(error, method !== "GET");
  }
}

export async function problemOf(response: Response): Promise<ProblemError> {
  if (response.status === 401) credentials.rejected();
  let problem: { type?: string; detail?: string; title?: string; request?: string; errors?: { field: string; message: string }[] } = {};
  try {
    problem = await response.json();
  } catch {
    // A proxy answered, not the control plane.
  }
  const fields = (problem.errors ?? []).map((error) => `${error.field}: ${error.message}`).join("; ");
  const text = problem.detail ?? problem.title ?? `The control plane answered with status ${response.status}.`;
  const slug = (problem.type ?? "").replace("urn:epochal:problem:", "");
  return new ProblemError(response.status, slug, fields ? `${text} (${fields})` : text, problem.request ?? null);
}
