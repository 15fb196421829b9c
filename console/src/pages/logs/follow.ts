/** The log of a driver as it grows. The connection ends while the page is hidden. */
import { useEffect, useRef, useState } from "preact/hooks";
import { problemOf, ProblemError, send, withQuery } from "../../api/client";
import { LogReader, type LogLine } from "../../model/log";

export type LogState = "reading" | "live" | "ended" | "off" | "retrying";

export interface FollowedLog {
  lines: readonly LogLine[];
  state: LogState;
  problem: ProblemError | null;
  again: () => void;
}

/** Maximum number of lines in the page; the API returns no more than these from the end of a log. */
export const MOST_LINES = 10_000;
const SHOWN_EACH_MS = 150;

export function useLog(path: string, query: { attempt: string | null; branch: string | null; tail: number }): FollowedLog {
  const [log, setLog] = useState<Omit<FollowedLog, "again">>({ lines: [], state: "reading", problem: null });
  const [round, setRound] = useState(0);
  const key = withQuery(path, { ...query, follow: true });
  const before = useRef(key);
  useEffect(() => {
    let abort: AbortController | null = null;
    let retry: ReturnType<typeof setTimeout> | undefined;
    let wait = 1000;
    if (before.current !== key) setLog({ lines: [], state: "reading", problem: null });
    before.current = key;
    const run = async (own: AbortController) => {
      let held: LogLine[] = [];
      let fresh = true;
      let timer: ReturnType<typeof setTimeout> | undefined;
      const flush = (state: LogState) => {
        clearTimeout(timer);
        timer = undefined;
        const [more, replaces] = [held, fresh];
        held = [];
        fresh = false;
        setLog(({ lines }) => ({ lines: (replaces ? more : [...lines, ...more]).slice(-MOST_LINES), state, problem: null }));
      };
      try {
        const response = await send("GET", key, { accept: "text/plain" }, undefined, own.signal);
        if (!response.ok || response.body === null) throw await problemOf(response);
        wait = 1000;
        const parser = new LogReader();
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        timer = setTimeout(() => flush("live"), SHOWN_EACH_MS);
        for (;;) {
          const { done, value } = await reader.read();
          if (own.signal.aborted) return clearTimeout(timer);
          if (done) break;
          held.push(...parser.push(value));
          timer ??= setTimeout(() => flush("live"), SHOWN_EACH_MS);
        }
        held.push(...parser.end());
        flush("ended");
      } catch (error) {
        clearTimeout(timer);
        if (own.signal.aborted) return;
        const known = error instanceof ProblemError ? error : null;
        if (known && known.status >= 400 && known.status < 500 && known.status !== 429) {
          setLog({ lines: [], state: "ended", problem: known });
          return;
        }
        setLog((log) => ({ ...log, state: "retrying", problem: known }));
        retry = setTimeout(() => open(), wait);
        wait = Math.min(wait * 2, 10_000);
      }
    };
    const open = () => {
      abort?.abort();
      abort = new AbortController();
      void run(abort);
    };
    const change = () => {
      clearTimeout(retry);
      if (document.visibilityState === "visible") open();
      else {
        abort?.abort();
        setLog((log) => (log.state === "ended" ? log : { ...log, state: "off" }));
      }
    };
    if (document.visibilityState === "visible") open();
    document.addEventListener("visibilitychange", change);
    return () => {
      abort?.abort();
      clearTimeout(retry);
      document.removeEventListener("visibilitychange", change);
    };
  }, [key, round]);
  return { ...log, again: () => setRound((before) => before + 1) };
}
