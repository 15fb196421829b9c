/** Data of a view: read when it is shown, and again after events that concern it. */
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { connected, listen, liveState, missedSince, type LiveEvent } from "../api/events";
import { passes, ProblemError, serverClock } from "../api/client";
import { who } from "../api/session";

export interface Data<Value> {
  value: Value | undefined;
  /** The value is only the beginning of what is being read. */
  partial: boolean;
  problem: ProblemError | null;
  reload(): void;
  /** Replace the value, until it is read again. */
  set(value: Value): void;
}

interface State<Value> {
  key: string;
  value?: Value;
  partial?: boolean;
  problem: ProblemError | null;
}

const PAUSE_MS = 1000;
const WITHOUT_STREAM_MS = 5000;

/**
 * `key` names what `read` reads: with another key, the value is discarded and read again. `concerns` decides which
 * events change it. The earlier value is shown while a newer one is read; while there is none, what `read` passes to
 * `begin`: the beginning of a long value.
 */
export function useData<Value>(
  key: string,
  read: (signal: AbortSignal, begin: (value: Value) => void) => Promise<Value>,
  concerns: (event: LiveEvent) => boolean = () => false,
): Data<Value> {
  const [state, setState] = useState<State<Value>>({ key, problem: null });
  const latest = useRef({ read, concerns });
  latest.current = { read, concerns };
  const again = useRef(() => {});
  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let under: number | null = null;
    let reading = false;
    let stale = false;
    const load = async () => {
      if (reading) {
        stale = true;
        return;
      }
      reading = true;
      stale = false;
      const begin = (value: Value) => {
        if (abort.signal.aborted) return;
        setState((before) => {
          const complete = before.key === key && "value" in before && !before.partial;
          return complete ? before : { key, value, partial: true, problem: null };
        });
      };
      try {
        under = await connected();
        if (abort.signal.aborted) return;
        const value = await latest.current.read(abort.signal, begin);
        if (!abort.signal.aborted) setState({ key, value, problem: null });
      } catch (error) {
        if (abort.signal.aborted) return;
        const problem = error instanceof ProblemError ? error : new ProblemError(0, "page", String(error));
        setState((before) => ({ ...(before.key === key ? before : {}), key, problem }));
        if (passes(problem)) soon(WITHOUT_STREAM_MS);
      } finally {
        reading = false;
        if (stale && !abort.signal.aborted) soon(PAUSE_MS);
      }
    };
    const soon = (ms: number) => {
      timer ??= setTimeout(() => {
        timer = undefined;
        void load();
      }, ms);
    };
    again.current = () => void load();
    void load();
    const ignore = listen((event) => {
      if (event === null ? missedSince(under) : latest.current.concerns(event)) soon(PAUSE_MS);
    });
    return () => {
      abort.abort();
      clearTimeout(timer);
      ignore();
    };
  }, [key, who.value === null]);
  const own: Omit<State<Value>, "key"> = state.key === key ? state : { problem: null };
  return {
    value: own.value,
    partial: own.partial === true,
    problem: own.problem,
    reload: () => again.current(),
    set: (value) => setState({ key, value, problem: null }),
  };
}

/** The current time of the control plane, which advances each second while the page is visible. */
export const now = signal(serverClock.at(Date.now()));
setInterval(() => {
  if (document.visibilityState === "visible") now.value = serverClock.at(Date.now());
}, 1000);

export { liveState };
