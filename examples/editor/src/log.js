// A document's log in Tailrace, read with clients/js: which documents there are, the updates of one, and what it lacks.
import { Client } from "../../../clients/js/tailrace.js"
import * as decoding from "lib0/decoding"
import * as encoding from "lib0/encoding"
import * as Y from "yjs"

export const SERVICE = "editor"
const PREFIX = `yjs/${SERVICE}/docs/`
const UPDATES = "/.updates"
const BYTES = "application/octet-stream"

export const client = new Client()

/**
 * Where this window keeps its event streams: a browser has six connections to a host, and each window needs two. Names
 * below `localhost` are this machine in most browsers; in others, three windows are the most.
 */
export const liveOrigin = await (async () => {
  const apart = `http://w${Math.floor(Math.random() * 1e9)}.localhost:${location.port}`
  if (!/^(127\.0\.0\.1|localhost)$/.test(location.hostname)) return location.origin
  return fetch(`${apart}/style.css`, { mode: "no-cors" }).then(() => apart, () => location.origin)
})()

/** The stream with the updates of a document. The official Yjs server names it so. */
export const updatesOf = (name) => client.stream(`${PREFIX}${name}${UPDATES}`, { contentType: BYTES })

/** The documents, the latest first. */
export async function documents() {
  const found = []
  for (let after; ; ) {
    const page = await client.streams({ prefix: PREFIX, search: UPDATES, limit: 1000, after })
    found.push(...page.streams)
    if (page.next === null) break
    after = page.next
  }
  return found.map(documentOf).sort((a, b) => b.at - a.at)
}

/** One document. */
export async function describe(name) {
  const page = await client.streams({ prefix: `${PREFIX}${name}${UPDATES}`, limit: 1 })
  if (page.streams.length === 0) throw new Error(`there is no document ${name}`)
  return documentOf(page.streams[0])
}

const documentOf = ({ path, bytes, appended_at, created_at }) => ({
  name: path.slice(PREFIX.length, -UPDATES.length),
  bytes,
  created: new Date(created_at),
  at: new Date(appended_at ?? created_at),
})

/** All updates of a document so far, in order, and where each ends in the log. */
export async function updates(name, signal) {
  const pages = []
  for (let offset = "-1"; ; ) {
    const page = await updatesOf(name).read({ offset, signal })
    pages.push(page.bytes)
    offset = page.offset
    if (page.upToDate || page.closed) break
  }
  return framed(pages)
}

function framed(pages) {
  const bytes = new Uint8Array(pages.reduce((size, page) => size + page.length, 0))
  let end = 0
  for (const page of pages) {
    bytes.set(page, end)
    end += page.length
  }
  const decoder = decoding.createDecoder(bytes)
  const found = []
  while (decoding.hasContent(decoder)) {
    const update = decoding.readVarUint8Array(decoder)
    found.push({ update, end: decoder.pos })
  }
  return found
}

/**
 * Append what a document has and its log lacks: edits made without a connection, and those whose request was lost. The
 * provider sends an edit once, while it is connected; the log says which ones have arrived. Returns whether any was missing.
 */
export async function repair(name, doc, signal) {
  const known = new Y.Doc()
  try {
    for (const { update } of await updates(name, signal)) Y.applyUpdate(known, update)
    const missing = Y.encodeStateAsUpdate(doc, Y.encodeStateVector(known))
    let lacks = false
    known.once("update", () => (lacks = true)) // it is called if the update has something new
    Y.applyUpdate(known, missing)
    if (!lacks) return false
    const encoder = encoding.createEncoder()
    encoding.writeVarUint8Array(encoder, missing)
    await updatesOf(name).append(encoding.toUint8Array(encoder), { signal })
    return true
  } finally {
    known.destroy()
  }
}

/** About when each of some positions of a log was written: the times of a few are asked for, the others lie between. */
export async function timeline(name, from, until, size, steps = 24) {
  const path = `${PREFIX}${name}${UPDATES}`
  const span = Math.max(until - from, 1)
  const times = Array.from({ length: steps + 1 }, (_, step) => from + (span * step) / steps)
  const marks = await Promise.all(
    times.map(async (timestamp) => {
      const query = { stream: path, timestamp: Math.floor(timestamp) }
      const { offsets } = await client.request("GET", "/v1/logs/at", { query })
      return { position: offsets["0"], at: timestamp }
    }),
  )
  marks.push({ position: size, at: until })
  return (position) => {
    const next = marks.findIndex((mark) => mark.position >= position)
    if (next <= 0) return new Date(next === 0 ? from : until)
    const [a, b] = [marks[next - 1], marks[next]]
    const share = b.position === a.position ? 1 : (position - a.position) / (b.position - a.position)
    return new Date(a.at + (b.at - a.at) * share)
  }
}
