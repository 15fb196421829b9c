/** Rates and lags of all applications of the project, and the choices of the list. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, resource } from "../api/client";
import { listen, LOAD } from "../api/events";
import { project } from "../api/session";
import type { Application, Lag, Page } from "../api/types";
import { behind, waits } from "../model/lags";
import { useData } from "../ui/data";

/** Pause in which loads are collected: with many applications, some arrive each second. */
const COLLECTED_MS = 1000;

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

/** Read once, and again if events were missed; then kept up by events. */
export function useLags(): ReadonlyMap<string, Lag> {
  /** Loads that have arrived since a reading began: those of the shown one, and of the one that is under way. */
  const newer = useRef<Map<string, Lag>[]>([]);
  const [updates, setUpdates] = useState(0);
  const data = useData(`lags ${project.value}`, async (signal) => {
    const own = new Map<string, Lag>();
    newer.current.push(own);
    try {
      const items = await all(signal);
      newer.current = [own];
      return { items, newer: own };
    } catch (error) {
      newer.current = newer.current.filter((each) => each !== own);
      throw error;
    }
  });
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ignore = listen((event) => {
      if (event?.kind !== LOAD || event.application === null) return;
      for (const each of newer.current) each.set(event.application, event.data as unknown as Lag);
      timer ??= setTimeout(() => {
        timer = undefined;
        setUpdates((count) => count + 1);
      }, COLLECTED_MS);
    });
    return () => {
      clearTimeout(timer);
      ignore();
    };
  }, []);
  return useMemo(() => {
    const { value } = data;
    return new Map([...(value?.items ?? []).map((lag): [string, Lag] => [lag.application, lag]), ...(value?.newer ?? [])]);
  }, [data.value, updates]);
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
