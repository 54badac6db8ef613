// Starts the published reference server on its durable, file-backed store: node reference.mjs DATA_DIRECTORY
//
// Compression is left at its default (it is used only by clients that ask for it; ours do not). What the server logs
// about slow appends is dropped, so that it does not pay for printing.
import { DurableStreamTestServer } from "@durable-streams/server"

const [dataDir] = process.argv.slice(2)
if (!dataDir) throw new Error("usage: node reference.mjs DATA_DIRECTORY")

const say = console.log
console.info = () => {}
console.warn = () => {}

const server = new DurableStreamTestServer({ host: "127.0.0.1", port: 0, dataDir })
say(`listening on ${await server.start()}`)

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, () => server.stop().finally(() => process.exit(0)))
}
