// Serves the editor: the page, the official Yjs server over a Tailrace server, and that server itself, on one origin.
//
//     node serve.mjs [--tailrace http://127.0.0.1:4437] [--port 8080]
//
// Requests below /v1/yjs go to the Yjs server, which keeps each document in a stream of Tailrace; all others below /v1 go
// to Tailrace. TAILRACE_TOKEN, if it is set, is added here: the page has no credentials. So this is for your own machine,
// and it takes requests of its own pages only.
import { createReadStream } from "node:fs"
import { createServer, request } from "node:http"
import { dirname, join } from "node:path"
import { fileURLToPath } from "node:url"
import { parseArgs } from "node:util"
import { YjsServer } from "@durable-streams/y-durable-streams/server"

const FILES = {
  "/": ["index.html", "text/html; charset=utf-8"],
  "/editor.js": ["editor.js", "text/javascript"],
  "/style.css": ["style.css", "text/css"],
}
const POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
const credentials = () => (process.env.TAILRACE_TOKEN ? { authorization: `Bearer ${process.env.TAILRACE_TOKEN}` } : {})

/** The Yjs server over a Tailrace server. */
export async function startYjs(tailrace, options = {}) {
  const server = new YjsServer({ port: 0, dsServerUrl: tailrace, dsServerHeaders: credentials(), ...options })
  await server.start()
  return server
}

/** The origin of the page: files, and the two servers behind it. */
export async function startPage({ tailrace, yjs, directory, port = 0 }) {
  const server = createServer((incoming, outgoing) => {
    const host = incoming.headers.host ?? ""
    const { origin } = incoming.headers
    if (!/^(127\.0\.0\.1|localhost|\[::1\]):\d+$/.test(host) || (origin !== undefined && origin !== `http://${host}`)) {
      outgoing.writeHead(403).end("only pages of this server may use it\n")
    } else if (incoming.url.startsWith("/v1/yjs/")) {
      forward(incoming, outgoing, yjs)
    } else if (incoming.url.startsWith("/v1/")) {
      forward(incoming, outgoing, tailrace, credentials())
    } else {
      sendFile(incoming, outgoing, directory)
    }
  })
  await new Promise((resolve, reject) => server.on("error", reject).listen(port, "127.0.0.1", resolve))
  return server
}

function forward(incoming, outgoing, base, more = {}) {
  const { host, origin, referer, ...headers } = incoming.headers // the page is of this origin, and that server of another
  const made = request(new URL(incoming.url, base), { method: incoming.method, headers: { ...headers, ...more } }, (answer) => {
    outgoing.writeHead(answer.statusCode, answer.headers)
    outgoing.flushHeaders()
    answer.pipe(outgoing)
    answer.on("error", () => outgoing.destroy())
  })
  made.on("error", (error) => {
    if (outgoing.headersSent) return outgoing.destroy()
    outgoing.writeHead(502, { "content-type": "application/json" })
    outgoing.end(JSON.stringify({ error: { code: "BAD_GATEWAY", message: `${base} cannot be reached: ${error.message}` } }))
  })
  outgoing.on("close", () => made.destroy())
  incoming.pipe(made)
}

function sendFile(incoming, outgoing, directory) {
  const found = FILES[incoming.url.split("?")[0]]
  if (found === undefined) return outgoing.writeHead(404).end("there is no such page\n")
  const [name, type] = found
  const file = createReadStream(join(directory, name))
  file.on("error", () => outgoing.writeHead(404).end("the page is not there yet; build it with: npm run build\n"))
  file.on("open", () => {
    const fields = { "content-type": type, "cache-control": "no-cache", "content-security-policy": POLICY }
    outgoing.writeHead(200, { ...fields, "x-content-type-options": "nosniff" })
    file.pipe(outgoing)
  })
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { tailrace: { type: "string" }, port: { type: "string" } } })
  const tailrace = values.tailrace ?? "http://127.0.0.1:4437"
  const yjs = await startYjs(tailrace)
  const directory = join(dirname(fileURLToPath(import.meta.url)), "dist")
  const page = await startPage({ tailrace, yjs: yjs.url, directory, port: Number(values.port ?? 8080) })
  console.log(`the editor is at http://127.0.0.1:${page.address().port} (Tailrace at ${tailrace}); stop it with Ctrl+C`)
}
