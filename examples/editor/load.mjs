// An editor-like load: writers that edit one document several times a second and readers of it, each with a provider of
// its own, over the official Yjs server. Prints how long edits took to be visible to the others, and what was lost, as JSON.
//
//     node load.mjs --server http://127.0.0.1:4437 [--writers 20] [--readers 20] [--rate 5] [--seconds 5]
import { randomUUID } from "node:crypto"
import { fileURLToPath } from "node:url"
import { parseArgs } from "node:util"
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads"
import { YjsProvider } from "@durable-streams/y-durable-streams"
import { YjsServer } from "@durable-streams/y-durable-streams/server"
import * as Y from "yjs"

const PATIENCE_MS = 60_000
const MARK = /<(\d+):(\d+):([\d.]+)>/g // writer, number of the edit, time in milliseconds

async function until(condition, what) {
  const end = Date.now() + PATIENCE_MS
  while (!condition()) {
    if (Date.now() > end) throw new Error(`${what()} after ${PATIENCE_MS / 1000} s`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

class Participant {
  seen = 0

  constructor(baseUrl, docId, latencies) {
    this.doc = new Y.Doc()
    this.text = this.doc.getText("content")
    this.provider = new YjsProvider({ doc: this.doc, baseUrl, docId })
    this.provider.on("error", (error) => console.error(`a participant: ${error.message}`))
    this.text.observe(({ delta }, { local }) => {
      if (local) return
      const now = performance.timeOrigin + performance.now()
      for (const { insert } of delta) {
        if (typeof insert !== "string") continue
        for (const [, , , sent] of insert.matchAll(MARK)) {
          this.seen++
          latencies.push(now - Number(sent))
        }
      }
    })
  }

  edit(writer, number) {
    const at = performance.timeOrigin + performance.now()
    this.text.insert(this.text.length, `<${writer}:${number}:${at.toFixed(3)}>`)
  }
}

export async function load({ server, writers = 20, readers = 20, rate = 5, seconds = 5 }) {
  // The Yjs server has a thread of its own: it must not wait for the participants.
  const worker = new Worker(fileURLToPath(import.meta.url), { workerData: { server } })
  try {
    const url = await new Promise((resolve, reject) => worker.once("message", resolve).once("error", reject))
    const latencies = []
    const docId = `load-${randomUUID()}`
    const all = Array.from({ length: writers + readers }, () => new Participant(`${url}/v1/yjs/load`, docId, latencies))
    await until(() => all.every(({ provider }) => provider.synced), () => "not all participants have joined")
    const edits = Math.round(rate * seconds)
    const began = performance.now()
    await Promise.all(
      all.slice(0, writers).map(async (participant, writer) => {
        for (let number = 0; number < edits; number++) {
          const due = began + (number + writer / writers) * (1000 / rate)
          await new Promise((resolve) => setTimeout(resolve, Math.max(0, due - performance.now())))
          participant.edit(writer, number)
        }
      }),
    )
    const expected = writers * edits
    const whole = () => all.every(({ text }) => [...text.toString().matchAll(MARK)].length === expected)
    await until(whole, () => "edits are missing").catch((error) => console.error(error.message))
    const present = all.map(({ text }) => new Set([...text.toString().matchAll(MARK)].map(([mark]) => mark)).size)
    const same = new Set(all.map(({ text }) => text.toString())).size === 1
    for (const { provider, doc } of all) {
      provider.disconnect()
      doc.destroy()
    }
    latencies.sort((a, b) => a - b)
    const percentile = (share) => latencies[Math.min(latencies.length - 1, Math.floor(latencies.length * share))]
    const lost = Math.max(...present.map((count) => expected - count))
    return { edits: expected, participants: all.length, lost, same, p50_ms: percentile(0.5), p99_ms: percentile(0.99) }
  } finally {
    await worker.terminate()
  }
}

if (!isMainThread) {
  const server = new YjsServer({ port: 0, dsServerUrl: workerData.server })
  parentPort.postMessage(await server.start())
} else if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const options = Object.fromEntries(["server", "writers", "readers", "rate", "seconds"].map((name) => [name, { type: "string" }]))
  const { server, ...numbers } = parseArgs({ options }).values
  if (server === undefined) throw new Error("--server is missing: the URL of a server of the Durable Streams protocol")
  const given = Object.fromEntries(Object.entries(numbers).map(([name, value]) => [name, Number(value)]))
  console.log(JSON.stringify(await load({ server, ...given })))
  process.exit(0) // connections that the provider leaves open would keep it alive
}
