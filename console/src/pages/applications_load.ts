/** Rates and lags of all applications of the project, and the choices of the list. */
import { useEffect, useMemo } from "preact/hooks";
import { get, resource } from "../api/client";
import { project } from "../api/session";
import type { Application, Lag, Page } from "../api/types";
import { behind, waits } from "../model/lags";
import { useData } from "../ui/data";

/** Drivers report every five seconds. */
const AGAIN_MS = 10_000;

async function all(signal: AbortSignal): Promise<Lag[]> {
  const items: Lag[] = [];
  let cursor: string | null = null;
  do {
    const page: Page<Lag> = await get(resource(project.value, "lags"), { limit: 500, cursor }, signal);
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor !== null);
  return items;
}

export function useLags(): ReadonlyMap<string, Lag> {
  const data = useData(`lags ${project.value}`, all, (event) => event.kind === "execution");
  useEffect(() => {
    const timer = setInterval(() => {
      if (document.visibilityState === "visible") data.reload();
    }, AGAIN_MS);
    return () => clearInterval(timer);
  }, [project.value]);
  return useMemo(() => new Map(data.value?.map((lag) => [lag.application, lag])), [data.value]);
}

export const CHOICES: [string, string][] = [
  ["", "all"],
  ["running", "running"],
  ["waiting", "waiting or behind"],
  ["failed", "failed"],
  ["stopped", "not running"],
];

export function chosen(application: Application, lag: Lag | undefined, choice: string, words: string, now: number): boolean {
  const text = words.trim().toLowerCase();
  if (text !== "" && !application.name.includes(text) && application.state !== text) return false;
  if (choice === "running" || choice === "failed") return application.state === choice;
  if (choice === "stopped") return !["running", "starting", "stopping"].includes(application.state);
  if (choice === "waiting") return waits(lag, now).length > 0 || (lag !== undefined && behind(lag)?.late === true) || Boolean(application.restarts);
  return true;
}
