import assert from "node:assert/strict";
import { test } from "node:test";
import type { GraphNode } from "../src/api/types";
import { currentSettings, fieldOf, isNamed, mergedSettings, settingsOf } from "../src/model/settings";

test("settings are read as the command line reads them", () => {
  const lines = ["parallelism=4", "commit=synchronous", "restart.max_restarts=2", "restart.window_seconds=1.5", "spark.executor.memory=2", "retained_seconds=null", "allow_dropped_state=a.b, c"];
  assert.deepEqual(settingsOf(lines), {
    parallelism: 4,
    commit: "synchronous",
    restart: { max_restarts: 2, window_seconds: 1.5 },
    spark: { "spark.executor.memory": "2" },
    retained_seconds: null,
    allow_dropped_state: ["a.b", "c"],
  });
  assert.deepEqual(settingsOf(['allow_dropped_state=["a"]', "allow_dropped_state=b"]), { allow_dropped_state: ["a", "b"] });
  assert.throws(() => settingsOf(["=3"]), /no name/);
  assert.throws(() => settingsOf(["parallelism=1", "parallelism=2"]), /set twice/);
});

test("settings are merged over the current ones, nested ones individually", () => {
  const before = { parallelism: 2, restart: { max_restarts: 5, window_seconds: 600 }, parallelisms: { a: 1, b: 2 }, autoscaling: null };
  assert.deepEqual(mergedSettings(before, { restart: { max_restarts: 1 }, parallelisms: { a: null, c: 3 }, autoscaling: { greatest: 4 } }), {
    parallelism: 2,
    restart: { max_restarts: 1, window_seconds: 600 },
    parallelisms: { b: 2, c: 3 },
    autoscaling: { greatest: 4 },
  });
});

test("names that can be set have their current values", () => {
  const operator = (name: string, type: string) => ({ name, type }) as GraphNode;
  const found = currentSettings({ parallelism: 2, retained_seconds: null, parallelisms: {}, allow_dropped_state: [], spark: { "spark.x": "1" }, restart: { max_restarts: 5 }, autoscaling: null }, [operator("rows", "source"), operator("totals", "aggregate")]);
  assert.deepEqual([...found], [
    ["allow_dropped_state", "none"], ["autoscaling", "not set"], ["autoscaling.greatest", "not set"], ["autoscaling.least", "not set"],
    ["parallelism", "2"], ["parallelisms.totals", "not set"], ["restart.max_restarts", "5"], ["retained_seconds", "not set"], ["spark.x", "1"],
  ]);
});

test("a problem is shown at the field that it names", () => {
  assert.deepEqual(fieldOf("invalid-parameters", "factor: .."), { field: "parameters", setting: null });
  assert.deepEqual(fieldOf("invalid-option", "configuration.restart.max_restarts: Input should be .."), { field: "settings", setting: "restart.max_restarts" });
  assert.deepEqual(fieldOf("invalid-option", "configuration.max_parallelism cannot change from 128 to 7: .."), { field: "settings", setting: "max_parallelism" });
  assert.deepEqual(fieldOf("invalid-option", "configuration: parallelism 9 is above .."), { field: "settings", setting: null });
  assert.deepEqual(fieldOf("invalid-option", "files.source: .."), { field: null, setting: null });
  assert.equal(isNamed("parallelisms.absent=3", "parallelisms"), true);
  assert.equal(isNamed("parallelism=3", "parallelisms"), false);
  assert.equal(isNamed("parallelism=3", null), false);
});
