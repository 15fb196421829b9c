import assert from "node:assert/strict";
import { test } from "node:test";
import { ServerClock } from "../src/model/clock";

const MINUTE = 60_000;
const START = Date.parse("2026-01-01T00:00:00Z");

/** A clock after answers each 700 ms, of a server whose clock is `ahead`, each under way for `delay` ms. */
function after(ahead: number, delay: number): ServerClock {
  const clock = new ServerClock();
  for (let sent = START; sent < START + MINUTE; sent += 700) {
    const written = sent + delay / 2 + ahead;
    clock.note(new Date(Math.floor(written / 1000) * 1000).toUTCString(), sent, sent + delay);
  }
  return clock;
}

test("a machine whose clock is wrong shows the time of the control plane", () => {
  for (const ahead of [7 * MINUTE, -3 * 60 * MINUTE]) {
    for (const delay of [2, 900]) assert.ok(Math.abs(after(ahead, delay).at(START) - START - ahead) < 1500, `${ahead} ${delay}`);
  }
});

test("a right clock stays as it is, also with slow answers", () => {
  for (const delay of [0, 5, 4000]) assert.equal(after(0, delay).at(START), START);
});

test("an answer without a date changes nothing", () => {
  const clock = after(MINUTE, 10);
  const before = clock.at(START);
  clock.note(null, START, START);
  clock.note("yesterday", START, START);
  assert.equal(clock.at(START), before);
});
