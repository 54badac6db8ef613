// The official Yjs provider and Yjs server, unmodified, over a Tailrace server.
//
// The Yjs server keeps a document's updates in a stream and, when they are many, a snapshot of them in another. After
// a snapshot at offset N it reads on from N + 1, an offset that nobody returned. Nothing may be skipped because of it.
import assert from "node:assert/strict"
import { after, afterEach, before, test } from "node:test"
import { YjsProvider } from "@durable-streams/y-durable-streams"
import { YjsServer } from "@durable-streams/y-durable-streams/server"
import { Awareness } from "y-protocols/awareness"
import * as Y from "yjs"

const timeout = 120_000
const threshold = 1_500 // bytes of updates between two snapshots
const streams = process.env.TAILRACE_URL
let server
let providers = []
let count = 0

before(async () => {
  server = new YjsServer({ port: 0, dsServerUrl: streams, compactionThreshold: threshold })
  await server.start()
})

after(async () => {
  // A provider that is destroyed while it connects leaves its request open, which would keep this process alive.
  setTimeout(() => process.exit(process.exitCode ?? 0), 30_000).unref()
  await server.stop()
  // The Yjs server lets go of those it serves, but not of the event streams that it reads for them.
  await globalThis[Symbol.for("undici.globalDispatcher.1")].destroy()
})

afterEach(async () => {
  for (const provider of providers) {
    provider.awareness?.destroy()
    await provider.disconnect()
    provider.destroy()
    provider.doc.destroy()
  }
  providers = []
})

const base = (at = server) => `${at.url}/v1/yjs/test`
const fresh = (name) => `${name}-${process.pid}-${count++}`
const textOf = (provider) => provider.doc.getText("content").toString()

/** Wait for a condition, for as long as a test may take. */
async function until(condition) {
  const end = Date.now() + timeout
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`never came: ${condition}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

async function join(docId, { awareness = false, at = server, liveMode } = {}) {
  const doc = new Y.Doc()
  const provider = new YjsProvider({
    doc, baseUrl: base(at), docId, liveMode, awareness: awareness ? new Awareness(doc) : undefined,
  })
  providers.push(provider)
  const failed = new Promise((_, reject) => provider.on("error", reject))
  failed.catch(() => {})
  await Promise.race([until(() => provider.synced), failed])
  return provider
}

async function type(provider, chunk, times) {
  const text = provider.doc.getText("content")
  for (let i = 0; i < times; i++) {
    text.insert(text.length, chunk)
    await provider.flush()
  }
}

/** The key of the latest snapshot, null if there is none. */
async function snapshot(docId) {
  const response = await fetch(`${base()}/docs/${docId}?offset=snapshot`, { redirect: "manual" })
  await response.arrayBuffer()
  return response.headers.get("location")?.match(/offset=([^&]+_snapshot)/)?.[1] ?? null
}

/** Write enough at once for a snapshot, which then ends where the updates do; its key, which is not `last`. */
async function compacted(provider, docId, last = null) {
  await type(provider, "X".repeat(threshold), 1)
  let found
  await until(async () => (found = await snapshot(docId)) !== last && found !== null)
  return found
}

for (const liveMode of ["sse", "long-poll"]) {
  test(`rapid edits reach all, those there and those to come, live=${liveMode}`, { timeout }, async () => {
    const docId = fresh("rapid")
    const [writer, reader] = [await join(docId, { liveMode }), await join(docId, { liveMode })]
    const expected = "The quick brown fox jumps over the lazy dog. ".repeat(10)
    for (const [i, letter] of [...expected].entries()) writer.doc.getText("content").insert(i, letter)
    await writer.flush()
    await until(() => textOf(reader) === expected)
    const late = await join(docId, { liveMode })
    await until(() => textOf(late) === expected)
  })

  test(`a late joiner has all after a compaction, live=${liveMode}`, { timeout }, async () => {
    const docId = fresh("late")
    const writer = await join(docId, { liveMode })
    await compacted(writer, docId)
    const late = await join(docId, { liveMode }) // nothing was written since: it waits one past the tail
    await until(() => textOf(late) === textOf(writer))
    await type(writer, "AFTER", 1)
    await until(() => textOf(late) === textOf(writer))
    const later = await join(docId, { liveMode }) // one past the snapshot lies inside a message now
    await until(() => textOf(later) === textOf(writer))
    await type(later, "BACK", 1)
    await until(() => textOf(writer) === textOf(later) && textOf(late) === textOf(later))
  })
}

test("the smallest update after a compaction is not skipped", { timeout }, async () => {
  const docId = fresh("smallest")
  const writer = await join(docId)
  await compacted(writer, docId)
  const text = writer.doc.getText("content")
  for (let i = 0; i < 5; i++) {
    text.delete(0, 1)
    await writer.flush()
    const late = await join(docId)
    await until(() => textOf(late) === textOf(writer))
  }
})

test("compaction after compaction loses nothing", { timeout }, async () => {
  const docId = fresh("cycles")
  const writer = await join(docId)
  const seen = new Set()
  let last = null
  for (let cycle = 0; cycle < 4; cycle++) {
    last = await compacted(writer, docId, last)
    seen.add(last)
  }
  assert.equal(seen.size, 4)
  const late = await join(docId)
  await until(() => textOf(late) === textOf(writer))
  assert.equal(textOf(late).length, 4 * threshold)
})

test("the offset after a snapshot leads back to the tail", { timeout }, async () => {
  const docId = fresh("offset")
  const writer = await join(docId)
  const key = await compacted(writer, docId)
  const response = await fetch(`${base()}/docs/${docId}?offset=${key}`)
  assert.equal(response.status, 200)
  await response.arrayBuffer()
  const next = response.headers.get("stream-next-offset")
  assert.ok(next > key.replace(/_snapshot$/, ""))
  const plain = await fetch(`${base()}/docs/${docId}?offset=${next}`)
  assert.equal(plain.status, 200)
  await plain.arrayBuffer()
  assert.equal(`${plain.headers.get("stream-next-offset")}_snapshot`, key)
  assert.equal(plain.headers.get("stream-up-to-date"), "true")
})

test("whoever was away during a compaction catches up", { timeout }, async () => {
  const docId = fresh("away")
  const [writer, other] = [await join(docId), await join(docId)]
  await type(writer, "BEFORE", 1)
  await until(() => textOf(other) === "BEFORE")
  await other.disconnect()
  await compacted(writer, docId)
  await type(writer, "AFTER", 1)
  await other.connect()
  await until(() => textOf(other) === textOf(writer))
})

test("edits of many at once, through compactions, come out the same for all", { timeout }, async () => {
  const docId = fresh("many")
  const writers = await Promise.all(Array.from({ length: 4 }, () => join(docId)))
  await Promise.all(writers.map((writer, i) => type(writer, String(i).repeat(60), 20)))
  await until(() => writers.every((writer) => textOf(writer).length === 4 * 20 * 60))
  await until(async () => (await snapshot(docId)) !== null)
  const late = await join(docId)
  await until(() => textOf(late).length === 4 * 20 * 60)
  assert.equal(new Set([...writers, late].map(textOf)).size, 1)
})

test("a Yjs server that restarts goes on from the last snapshot", { timeout }, async () => {
  const docId = fresh("restart")
  const writer = await join(docId)
  await compacted(writer, docId)
  await type(writer, "AFTER", 1)
  const again = new YjsServer({ port: 0, dsServerUrl: streams, compactionThreshold: threshold })
  await again.start()
  try {
    const late = await join(docId, { at: again })
    await until(() => textOf(late) === textOf(writer))
    await late.disconnect()
  } finally {
    await again.stop()
  }
})

test("rapid changes of awareness arrive, the last one last; who leaves is gone", { timeout }, async () => {
  const docId = fresh("awareness")
  const [one, two] = [await join(docId, { awareness: true }), await join(docId, { awareness: true })]
  const seen = () => two.awareness.getStates().get(one.awareness.clientID)
  await until(() => {
    one.awareness.setLocalStateField("here", true) // until the other listens: awareness has no history
    return seen()?.here
  })
  for (let x = 0; x <= 50; x++) one.awareness.setLocalStateField("cursor", { x })
  await until(() => seen()?.cursor?.x === 50)
  await one.disconnect()
  await until(() => seen() === undefined)
})
