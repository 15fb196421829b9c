/**
 * A development server: builds after each change, and forwards the API to a control plane.
 * `npm run dev`, with EPOCHAL_URL (default http://127.0.0.1:8000) and PORT (default 8090). FILES serves a built folder.
 */
import { context } from "esbuild";
import { createServer, request } from "node:http";
import { readFile } from "node:fs/promises";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { extname, join, normalize } from "node:path";
import { options, page } from "./build.mjs";

const target = new URL(process.env.EPOCHAL_URL ?? "http://127.0.0.1:8000");
const port = Number(process.env.PORT ?? 8090);
const TYPES = { ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html; charset=utf-8", ".txt": "text/plain" };
// The policy of the control plane, so that a violation is seen here first.
const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

let folder = process.env.FILES;
if (!folder) {
  folder = mkdtempSync(join(tmpdir(), "epochal-console-"));
  const watched = await context({ ...options, outdir: join(folder, "assets"), sourcemap: "linked", logLevel: "info" });
  await watched.watch();
}

async function file(path) {
  if (!process.env.FILES && path === "/console/assets/icon.svg") return readFile(new URL("../src/icon.svg", import.meta.url));
  return readFile(join(folder, normalize(path.slice("/console".length))));
}

createServer(async (incoming, answer) => {
  const path = new URL(incoming.url, "http://localhost").pathname;
  if (path === "/console" || path.startsWith("/console/")) {
    const headers = { "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer" };
    try {
      if (!extname(path) || !path.startsWith("/console/assets/")) throw new Error("a view");
      const bytes = await file(path);
      answer.writeHead(200, { ...headers, "content-type": TYPES[extname(path)] ?? "application/octet-stream" }).end(bytes);
    } catch {
      if (path.startsWith("/console/assets/")) return answer.writeHead(404, headers).end();
      const html = process.env.FILES ? await readFile(join(folder, "index.html")) : page("/console/assets/console.js", "/console/assets/style.css");
      answer.writeHead(200, { ...headers, "content-type": TYPES[".html"] }).end(html);
    }
    return undefined;
  }
  const onward = request(
    { host: target.hostname, port: target.port, path: incoming.url, method: incoming.method, headers: { ...incoming.headers, host: target.host } },
    (response) => {
      answer.writeHead(response.statusCode, response.headers);
      response.pipe(answer);
    },
  );
  onward.on("error", () => (answer.headersSent ? answer.destroy() : answer.writeHead(502).end()));
  answer.on("close", () => onward.destroy());
  incoming.pipe(onward);
  return undefined;
}).listen(port, "127.0.0.1", function () {
  console.log(`http://127.0.0.1:${this.address().port}/console/ of ${target.href}`);
});
