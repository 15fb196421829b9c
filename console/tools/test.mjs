/** Run the unit tests: bundles `tests/*.test.ts` for Node's test runner, which reads no TypeScript. */
import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const outdir = mkdtempSync(join(tmpdir(), "epochal-console-tests-"));
const entryPoints = readdirSync(join(root, "tests")).filter((name) => name.endsWith(".test.ts")).map((name) => `tests/${name}`);
try {
  await build({ absWorkingDir: root, entryPoints, outdir, bundle: true, platform: "node", format: "esm", outExtension: { ".js": ".mjs" } });
  const files = readdirSync(outdir).map((name) => join(outdir, name));
  process.exitCode = spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" }).status ?? 1;
} finally {
  rmSync(outdir, { recursive: true, force: true });
}
