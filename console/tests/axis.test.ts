import assert from "node:assert/strict";
import { test } from "node:test";
import { nearest, rangeOf, ticks, timeTicks } from "../src/model/axis";

test("ticks are round, within the range and not too many", () => {
  assert.deepEqual(ticks(0, 1, 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(ticks(0, 37, 4), [0, 10, 20, 30]);
  assert.deepEqual(ticks(-250, 250, 3), [-200, 0, 200]);
  for (const [low, high] of [[0.001, 0.0017], [3, 9_999_999], [-5, -4.2], [1e12, 1e12 + 3]] as const) {
    for (const most of [1, 3, 7]) {
      const found = ticks(low, high, most);
      const slack = (high - low) * 1e-6;
      assert.ok(found.length <= most + 1 && found.every((each) => each >= low - slack && each <= high + slack), `${low} ${high} ${found}`);
    }
  }
});

test("ticks of times are round in local time", () => {
  const start = Date.parse("2026-01-01T00:00:07Z") / 1000;
  assert.deepEqual(timeTicks(start, start + 60, 6, 0).at, [3, 13, 23, 33, 43, 53].map((each) => start + each));
  const days = timeTicks(start, start + 5 * 86_400, 5, 3600);
  assert.equal(days.step, 86_400);
  assert.ok(days.at.every((each) => (each + 3600) % 86_400 === 0) && days.at.length === 5);
  for (const length of [1, 50, 4000, 90_000, 1e6, 1e8]) {
    const found = timeTicks(start, start + length, 6, -1800);
    assert.ok(found.at.length <= 7 && found.at.every((each) => each >= start && each <= start + length), String(length));
  }
});

test("the range has all values, and 0 if they are not far from it", () => {
  assert.deepEqual(rangeOf([null, 2, 9]), [0, 9]);
  assert.deepEqual(rangeOf([100, 101]), [100, 101]);
  assert.deepEqual(rangeOf([-4, -4]), [-6, -2]);
  assert.deepEqual(rangeOf([0, 0]), [0, 1]);
  assert.deepEqual(rangeOf([null]), [0, 1]);
});

test("the nearest of sorted values", () => {
  const sorted = [1, 4, 4, 10];
  for (const wanted of [-3, 1, 2, 2.6, 4, 7.5, 99]) {
    const found = sorted[nearest(sorted, wanted)]!;
    assert.equal(Math.abs(found - wanted), Math.min(...sorted.map((each) => Math.abs(each - wanted))));
  }
  assert.equal(nearest([], 1), -1);
});
