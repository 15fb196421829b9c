import assert from "node:assert/strict";
import { test } from "node:test";
import { startPath } from "../src/model/start";

test("a caller without a role in the default project starts on the first of their projects", () => {
  const start = (path: string, roles: Record<string, string>) => startPath("/console", path, roles);
  assert.equal(start("/console", { sales: "viewer", billing: "admin" }), "/console/projects/billing/applications");
  assert.equal(start("/console/events", { sales: "viewer" }), "/console/projects/sales/events");
  assert.equal(start("/console/applications", { default: "viewer", billing: "admin" }), null);
  assert.equal(start("/console/applications", {}), null);
  assert.equal(start("/console/applications/orders", { sales: "viewer" }), null);
  assert.equal(start("/console/projects/other/applications", { sales: "viewer" }), null);
});
