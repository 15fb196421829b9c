/**
 * The caller of the session. With the control plane's `/v1/session`, the token is exchanged for a cookie that scripts
 * cannot read; mutating calls carry its CSRF token. A control plane without this resource receives the token itself,
 * which stays in the memory of this page. A link with `#code=` signs in once, without a token.
 */
import { computed, signal } from "@preact/signals";
import { restoreFragment, takeCode, takeRefusal } from "./arrival";
import { get, passes, ProblemError, problemOf, send, serverClock, useCredentials } from "./client";
import type { Role } from "./types";

export interface Who {
  name: string;
  /** Roles by project. */
  roles: Record<string, Role>;
}

interface SessionAnswer {
  name: string;
  roles: Record<string, Role>;
  csrf_token?: string | null;
  expires_at?: string | null;
}

/** `undefined`: not known yet; `null`: no caller. */
export const who = signal<Who | null | undefined>(undefined);
/** Why the last session ended, or the last login failed, for the sign-in page. */
export const ended = signal<string | null>(takeRefusal());
export const project = signal("default");
/** The identity provider with which people sign in, if the control plane has one. */
export const provider = signal<string | null>(null);

const ORDER: Role[] = ["viewer", "operator", "author", "admin"];
const role = computed<Role>(() => {
  const roles = who.value?.roles ?? {};
  return roles.default === "admin" ? "admin" : (roles[project.value] ?? "viewer");
});

/** Whether the caller has this role, or one that includes it, in the current project. */
export function may(needed: Role): boolean {
  return ORDER.indexOf(role.value) >= ORDER.indexOf(needed);
}

restoreFragment();
let code = takeCode();
// A link of the page that is open does not load it again. This listener precedes the router's.
addEventListener("popstate", () => {
  code = takeCode();
  if (code !== null) void resume();
});

const UNUSABLE =
  "This sign-in link cannot be used: it was used before, or has expired. Sign in below, or create another link with epochal console.";

let token: string | null = null;
let csrf: string | null = null;
let hasSessions = true;

useCredentials({
  headers: (mutates) => ({
    ...(token === null ? {} : { authorization: `Bearer ${token}` }),
    ...(mutates && csrf !== null ? { "x-csrf-token": csrf } : {}),
  }),
  rejected: () => {
    if (who.value) ended.value = "The session has ended. Sign in again; the page continues where it was.";
    forget();
  },
});

/** Whether the control plane does not answer yet whether there is a session. */
export const waiting = signal(false);
const RETRY_MS = 2000;

/** Sign in with the link that opened the page, or continue the session of the cookie, if there is one. Repeated until
 * the control plane answers. */
export async function resume(): Promise<void> {
  for (;;) {
    try {
      if (await useCode()) return;
      const response = await send("GET", "/v1/session", { accept: "application/json" });
      if (response.ok) return accept((await response.json()) as SessionAnswer);
      if (!passes(await problemOf(response))) {
        hasSessions = response.status !== 404;
        break;
      }
    } catch {
      // No answer, or a part of one.
    }
    waiting.value = true;
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
  who.value = null;
}

/** Read with which identity provider people sign in. */
export async function readMethods(): Promise<void> {
  if (!hasSessions) return;
  const methods = await get<{ provider?: string | null }>("/v1/session/methods").catch(() => ({ provider: null }));
  provider.value = methods.provider ?? null;
}

/** Exchange the code of the link. Without success, a session of this browser continues. */
async function useCode(): Promise<boolean> {
  if (code === null) return false;
  const response = await send("POST", "/v1/session", { authorization: `Bearer ${code}` });
  if (response.ok) {
    code = null;
    accept((await response.json()) as SessionAnswer);
    return true;
  }
  const problem = await problemOf(response);
  if (passes(problem)) throw problem;
  code = null;
  // Without authentication (409), no link is needed.
  if (response.status === 401) ended.value = UNUSABLE;
  else if (response.status !== 409) ended.value = problem.message;
  return false;
}

/** Sign in with a token. Raises `ProblemError` if the control plane refuses it. */
export async function signIn(given: string): Promise<void> {
  ended.value = null;
  if (hasSessions) {
    const response = await send("POST", "/v1/session", { authorization: `Bearer ${given}` });
    if (response.ok) return accept((await response.json()) as SessionAnswer);
    if (response.status !== 404) throw await problemOf(response);
    hasSessions = false;
  }
  token = given;
  try {
    await get("/v1/projects", { limit: 1 });
  } catch (error) {
    token = null;
    throw error;
  }
  who.value = await withToken();
}

export async function signOut(): Promise<void> {
  try {
    if (hasSessions) await send("DELETE", "/v1/session");
  } finally {
    forget();
  }
}

/** Without sessions, no resource names the caller: only administrators may list tokens. */
async function withToken(): Promise<Who> {
  try {
    await get("/v1/tokens", { limit: 1 });
    return { name: "admin", roles: { default: "admin" } };
  } catch (error) {
    if (error instanceof ProblemError && error.status === 403) return { name: "viewer", roles: {} };
    throw error;
  }
}

function accept(answer: SessionAnswer): void {
  ended.value = null;
  csrf = answer.csrf_token ?? null;
  who.value = { name: answer.name, roles: answer.roles };
  if (answer.expires_at) askAt(Date.parse(answer.expires_at));
}

let end: ReturnType<typeof setTimeout> | undefined;
const LONGEST_TIMER_MS = 2 ** 31 - 1;
const CLOCK_GRAIN_MS = 2000;

/** Ask for the session when it expires: a page that only listens to the event stream makes no request that fails. */
function askAt(expiry: number): void {
  clearTimeout(end);
  const wait = Math.max(expiry - serverClock.at(Date.now()), 0) + CLOCK_GRAIN_MS;
  end = setTimeout(async () => {
    if (!who.value) return;
    // Another failure is that of a request, which is repeated; the session has ended only with 401.
    const again = await get<SessionAnswer>("/v1/session").catch(() => null);
    if (again) accept(again);
    else if (who.value) askAt(serverClock.at(Date.now()) + RETRY_MS);
  }, Math.min(wait, LONGEST_TIMER_MS));
}

function forget(): void {
  clearTimeout(end);
  token = null;
  csrf = null;
  who.value = null;
}

/** Whether the caller administers the installation: its store, its sessions, and every project. */
export function administers(): boolean {
  return who.value?.roles.default === "admin";
}
