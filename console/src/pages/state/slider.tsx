/** Slide through the retained epochs. The address follows the slider after a short pause. */
import { useEffect, useRef, useState } from "preact/hooks";
import { get, resource } from "../../api/client";
import { project } from "../../api/session";
import type { Epoch, EpochPage } from "../../api/types";
import { moment } from "../../model/format";
import { address, choose } from "../../router";
import { useData } from "../../ui/data";
import { Age } from "../../ui/parts";
import { isCommitOf } from "./reading";

const PAUSE_MS = 120;
const PAGE = 500;
/** Epochs that are read after an event. */
const NEW = 20;

export function EpochSlider({ name }: { name: string }) {
  const path = resource(project.value, "applications", name, "epochs");
  const asked = address.value.query.get("epoch");
  const known = useRef<{ items: Epoch[]; cursor: string | null } | null>(null);
  const [older, setOlder] = useState(0);
  const epochs = useData(
    `retained ${path} ${older}`,
    async (signal) => {
      const before = known.current;
      const page = (limit: number, cursor: string | null = null) => get<EpochPage>(path, { limit, cursor, state: "committed" }, signal);
      const further = before !== null && older === before.items.length;
      let answer = await page(before && !further ? NEW : PAGE, further ? before.cursor : null);
      let kept = before?.items ?? [];
      if (before && !further && !answer.items.some((each) => kept.some((one) => one.epoch === each.epoch))) {
        answer = await page(PAGE);
        kept = [];
      }
      const items = merged(answer.items.filter((each) => each.state === "committed" && !each.collected_at), kept);
      known.current = { items, cursor: kept.length === 0 || further ? answer.next_cursor : before!.cursor };
      return known.current;
    },
    isCommitOf(name),
  );
  const items = (epochs.value ?? known.current)?.items ?? [];
  const cursor = (epochs.value ?? known.current)?.cursor ?? null;
  const [moved, setMoved] = useState<number | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout>>();
  useEffect(() => () => clearTimeout(timer.current), []);
  if (items.length === 0) return null;
  const found = asked === null ? items.length - 1 : items.findIndex((each) => each.epoch >= Number(asked));
  const index = moved !== null ? Math.min(moved, items.length - 1) : found < 0 ? items.length - 1 : found;
  const chosen = items[index]!;
  const exact = moved !== null || asked === null || chosen.epoch === Number(asked);
  const go = (next: number, pause = PAUSE_MS) => {
    const target = Math.max(0, Math.min(items.length - 1, next));
    setMoved(target);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      setMoved(null);
      choose({ epoch: target === items.length - 1 ? null : String(items[target]!.epoch) });
    }, pause);
  };
  return (
    <div class="slider">
      <label>
        <span class="hidden">Epoch</span>
        <input type="range" min={0} max={items.length - 1} value={index} aria-valuetext={`epoch ${chosen.epoch}`} onInput={(event) => go(Number(event.currentTarget.value))} />
      </label>
      <button type="button" aria-label="Previous epoch" disabled={index === 0} onClick={() => go(index - 1, 0)}>
        ‹
      </button>
      <button type="button" aria-label="Next epoch" disabled={index === items.length - 1} onClick={() => go(index + 1, 0)}>
        ›
      </button>
      <span class="where">
        {asked === null && moved === null ? "latest: " : ""}epoch {exact ? chosen.epoch : asked}
        {exact && chosen.committed_at && (
          <small>
            {" "}
            {moment(chosen.committed_at)}, <Age at={chosen.committed_at} />
          </small>
        )}
      </span>
      <form
        class="goto"
        onSubmit={(event) => {
          event.preventDefault();
          const field = new FormData(event.currentTarget).get("epoch");
          if (field) choose({ epoch: String(field) });
        }}
      >
        <input name="epoch" type="number" min={0} step={1} aria-label="Go to epoch" placeholder="Epoch" required />
        <button type="submit">Go</button>
      </form>
      {asked !== null && (
        <button type="button" onClick={() => choose({ epoch: null })}>
          Latest
        </button>
      )}
      {cursor !== null && (
        <button type="button" onClick={() => setOlder(items.length)}>
          Older epochs
        </button>
      )}
    </div>
  );
}

/** Epochs in order, each number once: a rollback repeats numbers, and the newer list is that of the current branch. */
function merged(newer: readonly Epoch[], older: readonly Epoch[]): Epoch[] {
  const byNumber = new Map<number, Epoch>();
  for (const each of [...older, ...[...newer].reverse()]) byNumber.set(each.epoch, each);
  return [...byNumber.values()].sort((left, right) => left.epoch - right.epoch);
}
