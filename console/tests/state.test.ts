import assert from "node:assert/strict";
import { test } from "node:test";
import { literal, questionCommands, questionPath, quoted, scanCommands, type Looked } from "../src/model/commands";
import { jsonText, parseExact } from "../src/model/exact";
import { barsOf, skewOf, step } from "../src/model/groups";
import { columnsOf, isAddressable, keyText, keyValues, prefixColumns, prefixOf, prefixText, type Given } from "../src/model/keys";
import { intervalMs, recentFrom, stepMs, withResults } from "../src/model/queries";
import { cellText, chartNumber, chartValues, clip, difference, valueText } from "../src/model/values";

const column = (name: string, type: string) => ({ name, type });

function prefix(given: Given[], types: string[]): string {
  return prefixText(prefixOf(given, types));
}

test("a prefix ends at the first column that is not filled in, and an incomplete text has a star", () => {
  assert.equal(prefix(["JFK", "L"], ["string", "string"]), "JFK,L*");
  assert.equal(prefix(["JFK", undefined], ["string", "string"]), "JFK*");
  assert.equal(prefix([undefined, "L"], ["string", "string"]), "");
  assert.equal(prefix(["42"], ["bigint"]), "42");
});

test("a prefix may have null, an empty text and a star", () => {
  assert.equal(prefix([null, undefined], ["string", "string"]), "%00");
  assert.equal(prefix(["", "x"], ["string", "string"]), ",x*");
  assert.equal(prefix(["JFK", ""], ["string", "string"]), "JFK,");
  assert.equal(prefix(["a*"], ["string"]), "a%2A*");
});

test("keys of every type are exact", () => {
  const values = [9223372036854775807n, true, "12.50", "2013-01-31T05:15:00.000000Z", "a\nb", "it's (*)!", null, ""];
  const text = keyText(values);
  assert.deepEqual(keyValues(text), ["9223372036854775807", "true", "12.50", "2013-01-31T05:15:00.000000Z", "a\nb", "it's (*)!", null, ""]);
  assert.match(text, /^[\w.~%,-]*$/);
  assert.equal(keyText(["\ud800x"]), keyText(["\ufffdx"]));
});

test("a text of one zero character has no address", () => {
  assert.equal(isAddressable(["\0"]), false);
  assert.equal(isAddressable(["a", null, ""]), true);
});

test("broadcast state is scanned without its key group, and partial state is found without an instance", () => {
  const table = { key: [column("_group", "int")], sub_key: [column("word", "string")], scope: "broadcast" };
  assert.deepEqual(prefixColumns(table).map((each) => each.name), ["word"]);
  assert.deepEqual(columnsOf({ ...table, scope: "partial" }, 1).map((each) => each.name), ["word"]);
  assert.deepEqual(columnsOf({ ...table, scope: "keyed" }, 1).map((each) => each.name), ["_group"]);
});

test("long integers keep all digits, and texts that look like them stay texts", () => {
  const text = '{"a":9223372036854775807,"b":[-9007199254740993],"c":"9223372036854775807","d":0.30000000000000004,"e":9007199254740991,"f":"\\"1234567890123456789"}';
  const parsed = parseExact(text) as Record<string, unknown>;
  assert.equal(parsed.a, 9223372036854775807n);
  assert.deepEqual(parsed.b, [-9007199254740993n]);
  assert.equal(parsed.c, "9223372036854775807");
  assert.equal(parsed.d, 0.30000000000000004);
  assert.equal(parsed.e, 9007199254740991);
  assert.equal(parsed.f, '"1234567890123456789');
  assert.equal(jsonText(parsed), text);
});

test("nested values are indented", () => {
  assert.equal(jsonText({ a: [1, null], b: {} }, "\n"), '{\n  "a": [\n    1,\n    null\n  ],\n  "b": {}\n}');
});

test("long texts are cut without splitting a character", () => {
  assert.equal(clip("😀😀😀", 4), "😀…");
  assert.equal(clip("abc", 3), "abc");
  assert.equal(clip("x".repeat(1_000_000), 10).length, 10);
});

test("cells show line breaks and empty texts", () => {
  assert.equal(cellText("a\nb\tc"), "a↵b⇥c");
  assert.equal(cellText(""), '""');
  assert.equal(cellText({ a: 12345678901234567890n }), '{"a":12345678901234567890}');
  assert.equal(valueText(-0), "-0");
});

test("differences of integers and decimals are exact", () => {
  assert.equal(difference(9223372036854775806n, 9223372036854775807n), "+1");
  assert.equal(difference("12.50", "12.25"), "−0.25");
  assert.equal(difference(1.5, 2), "+0.5");
  assert.equal(difference(1, 1), null);
  assert.equal(difference(null, 1), null);
  assert.equal(difference("NaN", 1), null);
  assert.equal(difference(1e300, 2e300), "+1e+300");
  assert.equal(chartNumber("Infinity"), null);
  assert.equal(chartNumber("12.50"), 12.5);
});

test("values that differ in their last digits are drawn as distances", () => {
  assert.deepEqual(chartValues([9007199254740994n, null, 9007199254740996n]), { values: [0, null, 2], base: "9007199254740994" });
  assert.deepEqual(chartValues(["12345678901234.5678", "12345678901235.5678"]), { values: [0, 1], base: "12345678901234.5678" });
  assert.deepEqual(chartValues([1, 2]), { values: [1, 2], base: null });
  assert.equal(chartValues([9007199254740994n, 9007199254740994n]).base, "9007199254740994");
  assert.deepEqual(chartValues([7, 7]), { values: [7, 7], base: null });
});

const asked: Looked = { project: "default", application: "flights", table: "delays", values: ["JFK", "LAX"], types: ["string", "string"], epoch: "12" };

test("a key becomes commands", () => {
  const commands = questionCommands("value", asked);
  assert.equal(commands.cli, "epochal get --epoch 12 flights delays JFK,LAX");
  assert.match(commands.curl, /'\/v1\/applications\/flights\/state\/delays\/keys\?key=JFK%2CLAX&epoch=12'$/);
  assert.match(commands.python, /\.state\("delays"\)\.get\("JFK", "LAX", epoch=12\)\)$/);
  assert.equal(questionCommands("blame", { ...asked, epoch: null }).cli, "epochal get --blame flights delays JFK,LAX");
});

test("an empty text, a hyphen and null are keys of commands", () => {
  const one = (value: string | null, type = "string"): Looked => ({ ...asked, values: [value], types: [type], epoch: null });
  assert.equal(questionPath("value", one("")), "/v1/applications/flights/state/delays/keys?key=");
  assert.equal(questionCommands("value", one("")).cli, "epochal get flights delays ''");
  assert.equal(questionCommands("history", one("-5", "int")).cli, "epochal get --history flights delays -- -5");
  assert.match(questionCommands("value", one("-5", "int")).python, /\.get\(-5\)/);
  assert.match(questionCommands("value", one(null)).python, /\.get\(None\)/);
  assert.equal(questionCommands("value", one("a,b")).cli, "epochal get flights delays a%2Cb");
});

test("a prefix becomes commands", () => {
  assert.equal(scanCommands(asked, true).cli, "epochal scan --epoch 12 flights delays 'JFK,LAX*'");
  assert.match(scanCommands(asked, true).python, /\.scan\("JFK", "LAX", begins_with=True, epoch=12\)/);
  assert.equal(scanCommands({ ...asked, values: [], epoch: null }, false).cli, "epochal scan flights delays");
});

test("programs show characters that a reader would not see", () => {
  assert.equal(literal("a\u202eb\u200b"), '"a\\u202eb\\u200b"');
  assert.equal(quoted("=ls"), "'=ls'");
});

test("the ratio of the greatest key group to the median", () => {
  assert.deepEqual(skewOf([1, 2, 3, 40]), { greatest: 40, median: 2.5, group: 3, ratio: 16, empty: 0 });
  assert.equal(skewOf([0, 0, 0, 9]).ratio, null);
  assert.equal(skewOf([]).greatest, 0);
});

test("a strip with many key groups hides no great one", () => {
  const rows = Array.from({ length: 32768 }, (_, group) => (group === 20_001 ? 900 : 1));
  const bars = barsOf(rows, rows, "rows", 512);
  assert.equal(bars.length, 512);
  assert.deepEqual(bars.filter((bar) => bar.rows === 900).map((bar) => [bar.first, bar.last]), [[19968, 20031]]);
  assert.equal(bars.at(-1)!.last, 32767);
  assert.deepEqual([step(0, 9), step(1, 900), step(900, 900)], [0, 1, 5]);
});

const SLIDING = { query: "SELECT count(*) AS n WHERE a = 'WINDOW \\'1 day\\'' WINDOW '1 hour' SLIDE '5 minutes'", first_window: null, watermark: "2026-01-01T01:00:00Z" };

test("the latest windows begin before the watermark", () => {
  assert.equal(intervalMs("1 hour 30 minutes"), 5_400_000);
  assert.equal(intervalMs("a while"), null);
  assert.equal(stepMs(SLIDING), 300_000);
  assert.equal(recentFrom(SLIDING, 12), "2026-01-01T00:00:00.000Z");
  assert.equal(recentFrom({ ...SLIDING, watermark: null }, 12), null);
});

test("newer results come first, and a result that is read again is shown once", () => {
  const result = (end: string, device: string, n: number) => ({ window_start: end, window_end: end, group: { device }, values: { n }, error: null, answered_at: end });
  const known = [result("2026-01-01T00:05:00Z", "b", 1)];
  const merged = withResults(known, [result("2026-01-01T00:10:00Z", "a", 3), result("2026-01-01T00:05:00Z", "b", 1), result("2026-01-01T00:05:00Z", "a", 2)], 10);
  assert.deepEqual(merged.map((each) => each.values.n), [3, 2, 1]);
  assert.equal(withResults(known, merged, 2).length, 2);
});
