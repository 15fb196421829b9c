/** Build the bundle: `node tools/build.mjs [FOLDER]`. The same sources give the same bytes. */
import { build } from "esbuild";
import { mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");

export const options = {
  absWorkingDir: root,
  entryPoints: { console: "src/main.tsx", style: "src/style.css" },
  bundle: true,
  splitting: true,
  format: "esm",
  target: ["chrome111", "firefox114", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  publicPath: "/console/assets/",
  legalComments: "none",
  charset: "utf8",
  metafile: true,
};

export function page(script, style) {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>Epochal</title>
<link rel="icon" href="/console/assets/icon.svg">
<link rel="stylesheet" href="${style}">
<script type="module" src="${script}"></script>
</head>
<body>
<div id="root"></div>
<noscript>The console needs JavaScript. The command line and the REST API do the same.</noscript>
</body>
</html>
`;
}

/** Licences of the packages that are part of the bundle, by name. */
async function notices(inputs) {
  const packages = new Set();
  for (const input of inputs) {
    const match = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (match) packages.add(match[1]);
  }
  const texts = [];
  for (const name of [...packages].sort()) {
    const folder = join(root, "node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).find((each) => /^licen[cs]e/i.test(each));
    const text = file ? (await readFile(join(folder, file), "utf8")).replaceAll("\r\n", "\n").trim() : "";
    texts.push(`${name} ${version}\nLicense: ${license}\n\n${text}\n`);
  }
  return `The console contains these packages.\n\n${texts.join(`\n${"-".repeat(80)}\n\n`)}`;
}

export async function make(folder) {
  await rm(folder, { recursive: true, force: true });
  await mkdir(join(folder, "assets"), { recursive: true });
  const result = await build({
    ...options,
    outdir: join(folder, "assets"),
    minify: true,
    entryNames: "[name]-[hash]",
    chunkNames: "[name]-[hash]",
  });
  const outputs = Object.entries(result.metafile.outputs);
  const named = (entry) => outputs.find(([, output]) => output.entryPoint === entry)[0].split("/").at(-1);
  await writeFile(join(folder, "index.html"), page(`/console/assets/${named("src/main.tsx")}`, `/console/assets/${named("src/style.css")}`));
  await writeFile(join(folder, "assets", "icon.svg"), await readFile(join(root, "src", "icon.svg"), "utf8"));
  await writeFile(join(folder, "LICENSES.txt"), await notices(Object.keys(result.metafile.inputs)));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await make(resolve(process.argv[2] ?? join(root, "..", "service", "console_files")));
}
