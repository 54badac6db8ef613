// Builds the page into dist/: one script, one style sheet, no other files to fetch.
import { cp, mkdir } from "node:fs/promises"
import { fileURLToPath } from "node:url"
import { build } from "esbuild"

const here = (path) => fileURLToPath(new URL(path, import.meta.url))

export async function buildPage(outdir = here("dist")) {
  await mkdir(outdir, { recursive: true })
  await build({
    entryPoints: [here("src/main.js")],
    outfile: `${outdir}/editor.js`,
    bundle: true,
    format: "esm",
    minify: true,
    target: "es2022",
    logLevel: "warning",
  })
  for (const file of ["index.html", "style.css"]) await cp(here(`src/${file}`), `${outdir}/${file}`)
  return outdir
}

if (process.argv[1] === fileURLToPath(import.meta.url)) console.log(`built into ${await buildPage()}`)
