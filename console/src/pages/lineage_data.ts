/** The lineage of one or several applications: pages as they are scrolled to, live, with opened runs. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, passes, ProblemError, resource } from "../api/client";
import { connected, listen, missedSince } from "../api/events";
import { project } from "../api/session";
import type { Lineage, LineageEdge, LineageNode, Schemas } from "../api/types";
import { drawingOf, joined, keyOf, refreshed, runWith, withOpened, type Item, type Tree } from "../model/lineage";

const PAGE = 500;
const PAUSE_MS = 1000;
/** Epochs of a run that are shown at once. */
const OPENED = 100;

type Opened = { nodes: LineageNode[]; edges: LineageEdge[] };

export function useLineage(own: string, others: readonly string[], fold: boolean) {
  const key = `${project.value} ${own} ${others.join()} ${fold}`;
  const [tree, setTree] = useState<{ key: string; tree: Tree } | null>(null);
  const [problem, setProblem] = useState<ProblemError | null>(null);
  const [opened, setOpened] = useState<Opened[]>([]);
  const latest = useRef<Tree | null>(null);
  const again = useRef(() => {});
  const path = resource(project.value, "applications", own, "lineage");

  const page = async (cursor: string | null, signal?: AbortSignal): Promise<Tree> => {
    if (others.length === 0) {
      const answer = await get<Lineage>(path, { fold, slices: false, limit: PAGE, cursor }, signal);
      return { nodes: answer.nodes, edges: answer.edges, heads: { [own]: answer.head ?? null, ...answer.heads }, next_cursor: answer.next_cursor ?? null };
    }
    const query = new URLSearchParams([...[own, ...others].map((name) => ["application", name]), ["limit", String(PAGE)], ...(cursor ? [["cursor", cursor]] : [])] as [string, string][]);
    const answer = await get<Schemas["LineagesAnswer"]>(`${resource(project.value, "lineage")}?${query}`, {}, signal);
    return { nodes: answer.nodes, edges: answer.edges, heads: answer.heads, next_cursor: answer.next_cursor ?? null };
  };

  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    latest.current = null;
    setOpened([]);
    let under: number | null = null;
    const read = async () => {
      try {
        under = await connected();
        if (abort.signal.aborted) return;
        const first = await page(null, abort.signal);
        if (abort.signal.aborted) return;
        latest.current = refreshed(latest.current, first);
        setTree({ key, tree: latest.current });
        setProblem(null);
      } catch (error) {
        if (abort.signal.aborted) return;
        setProblem(error instanceof ProblemError ? error : new ProblemError(0, "page", String(error)));
        if (!(error instanceof ProblemError) || passes(error)) soon(5 * PAUSE_MS);
      }
    };
    const soon = (ms: number) => {
      timer ??= setTimeout(() => {
        timer = undefined;
        void read();
      }, ms);
    };
    again.current = () => void read();
    void read();
    const ignore = listen((event) => {
      const names = latest.current?.nodes.map((node) => node.application) ?? [];
      if (event === null) {
        if (missedSince(under)) soon(PAUSE_MS);
        return;
      }
      const ours = event.application === own || names.includes(event.application ?? "");
      if (ours && (event.kind === "savepoint" || event.kind === "operation" || (event.kind === "epoch" && event.data.state === "committed"))) soon(PAUSE_MS);
    });
    return () => {
      abort.abort();
      clearTimeout(timer);
      ignore();
    };
  }, [key]);

  const loading = useRef(false);
  const more = async () => {
    const before = latest.current;
    if (loading.current || !before?.next_cursor) return;
    loading.current = true;
    try {
      const older = await page(before.next_cursor);
      // What was read meanwhile stays if the page still follows it.
      if (latest.current?.next_cursor === before.next_cursor) {
        latest.current = joined(latest.current, older);
        setTree({ key, tree: latest.current });
      }
    } catch (error) {
      setProblem(error as ProblemError);
    } finally {
      loading.current = false;
    }
  };

  /** Show epochs of a run one by one: the newest ones, or those around an epoch. */
  const open = async (run: Item, around?: number) => {
    const last = around === undefined ? run.epoch : Math.min(run.epoch, around + OPENED / 4);
    const query = { branch: run.branch, first: Math.max(run.first, last - OPENED + 1), last, limit: OPENED, slices: false };
    const answer = await get<Lineage>(resource(project.value, "applications", run.application, "lineage"), query);
    setOpened((before) => [...before, answer]);
  };

  const known = tree?.key === key ? tree.tree : null;
  const shown = useMemo(() => known && withOpened(known, opened), [known, opened]);
  const drawing = useMemo(() => drawingOf(shown, own), [shown, own]);
  return {
    path,
    tree: shown,
    drawing,
    problem,
    more,
    open,
    /** Number of opened parts of runs. */
    opened: opened.length,
    fold: () => setOpened([]),
    reload: () => again.current(),
    find: (application: string, epoch: number) => (shown ? runWith(shown, application, epoch) : undefined),
    has: (node: Item) => shown?.nodes.some((each) => keyOf(each) === keyOf(node)) ?? false,
  };
}
