import assert from "node:assert/strict";
import { test } from "node:test";
import { filtered, LogReader } from "../src/model/log";

const TEXT = `2026-11-29 08:53:47,385 INFO    epochal.engine.coordinator: E1 open: epoch orders-c6/1 on None
26/11/29 08:53:48 WARN TaskSetManager: Lost task 0.0
java.lang.RuntimeException: no
\tat org.example.Main
out, epoch 12: 10 rows
2026-11-29 08:53:49,000 ERROR   epochal.driver: epoch orders-c6/12 is aborted
    Traceback (most recent call last):
    ValueError: mistake
{"time":"2026-11-29T08:53:50Z","level":"error","logger":"x","message":"E4","epoch":12}
`;

test("lines of a record have its level, however the text is divided", () => {
  const whole = new LogReader().push(TEXT);
  assert.deepEqual(
    whole.map((line) => [line.level, line.begins]),
    [["info", true], ["warning", true], ["warning", false], ["warning", false], ["output", true], ["error", true], ["error", false], ["error", false], ["error", true]],
  );
  const reader = new LogReader();
  const pieces = [...TEXT].flatMap((character) => reader.push(character));
  assert.deepEqual(pieces, whole);
  assert.deepEqual(new LogReader().end(), []);
});

test("a filter shows whole records", () => {
  const lines = new LogReader().push(TEXT);
  const numbers = (more: object) => filtered(lines, { level: "", text: "", epoch: "", ...more }).map((line) => line.number);
  assert.deepEqual(numbers({ text: "MISTAKE" }), [6, 7, 8]);
  assert.deepEqual(numbers({ level: "warning" }), [2, 3, 4, 6, 7, 8, 9]);
  assert.deepEqual(numbers({ epoch: "12" }), [5, 6, 7, 8, 9]);
  assert.deepEqual(numbers({ epoch: "1" }), [1]);
  assert.deepEqual(numbers({ level: "error", text: "e4" }), [9]);
  assert.equal(filtered(lines, { level: "", text: "", epoch: "" }), lines);
});
