// The official JavaScript client, unmodified, against a real server at TAILRACE_URL.
// Live tests wait for what they expect, never for a time: each write follows a read that was seen.
import assert from "node:assert/strict"
import { randomUUID } from "node:crypto"
import { test } from "node:test"
import { DurableStream, IdempotentProducer, StaleEpochError, stream } from "@durable-streams/client"

const base = process.env.TAILRACE_URL
assert.ok(base, "TAILRACE_URL is not set: give the base URL of a running server")

const timeout = 120_000
const json = "application/json"
const text = "text/plain"

const fresh = (name) => `${base}/v1/stream/clients/node/${name}-${randomUUID()}`
const create = (name, contentType, options = {}) => DurableStream.create({ url: fresh(name), contentType, ...options })
const readJson = async (url) => (await stream({ url, live: false })).json()
const readText = async (url) => (await stream({ url, live: false })).text()

/** Read live until `seen(batch)` says true. Always lets go of the connection: a reader left open never ends. */
async function until(options, subscribe, seen) {
  const response = await stream({ offset: "-1", ...options })
  try {
    await new Promise((resolve, reject) => {
      response.closed.catch(reject)
      response[subscribe]((batch) => Promise.resolve(seen(batch)).then((done) => done && resolve(), reject))
    })
  } finally {
    response.cancel()
  }
}

/** Follow a JSON stream until `count` items came; `onItem` may write, which is what makes the next one come. */
async function follow(url, live, count, onItem) {
  const items = []
  await until({ url, live }, "subscribeJson", async (batch) => {
    for (const item of batch.items) {
      items.push(item)
      if (items.length < count) await onItem(item)
    }
    return items.length >= count
  })
  return items
}

test("create, append, read, head", { timeout }, async () => {
  const handle = await create("text", text)
  await handle.append("one ")
  await handle.append(new TextEncoder().encode("two"))

  assert.equal(await readText(handle.url), "one two")
  const head = await handle.head()
  assert.equal(head.exists, true)
  assert.equal(head.contentType, text)
  assert.equal(head.streamClosed, false)
  assert.ok(head.offset)
  const connected = await DurableStream.connect({ url: handle.url })
  assert.equal(connected.contentType, text)
})

test("create with a body, again with the same settings, and with others", { timeout }, async () => {
  const url = fresh("again")
  await DurableStream.create({ url, contentType: json, body: '[{"n":1}]' })
  await DurableStream.create({ url, contentType: json })
  await assert.rejects(
    DurableStream.create({ url, contentType: text }),
    (error) => error.status === 409
  )
  assert.deepEqual(await readJson(url), [{ n: 1 }])
})

test("a read resumes from the offset where the last one ended", { timeout }, async () => {
  const handle = await create("resume", json)
  await handle.append('{"n":1}')
  const first = await handle.stream({ live: false })
  assert.deepEqual(await first.json(), [{ n: 1 }])
  assert.equal(first.upToDate, true)

  await handle.append('{"n":2}')
  const second = await handle.stream({ live: false, offset: first.offset })
  assert.deepEqual(await second.json(), [{ n: 2 }])
  const third = await handle.stream({ live: false, offset: second.offset })
  assert.deepEqual(await third.json(), [])
})

test("JSON mode keeps messages, flattens one level, refuses what is not JSON", { timeout }, async () => {
  const handle = await create("json", json, { batching: false })
  await handle.append('{"a":1}')
  await handle.append('[[1,2],"x"]')
  await handle.append('"Grüße ☃"')
  const before = await readJson(handle.url)
  // The client wraps what it is given in an array of its own, so the inner array is one message.
  assert.deepEqual(before, [{ a: 1 }, [[1, 2], "x"], "Grüße ☃"])

  await assert.rejects(
    handle.append("{not json"),
    (error) => error.status === 400
  )
  assert.deepEqual(await readJson(handle.url), before)
})

test("binary content comes back byte for byte", { timeout }, async () => {
  const bytes = Uint8Array.from({ length: 1024 }, (_, i) => i % 256)
  const handle = await create("bytes", "application/octet-stream")
  await handle.append(bytes)
  const response = await handle.stream({ live: false })
  assert.deepEqual(Buffer.from(await response.body()), Buffer.from(bytes))
})

for (const live of ["long-poll", "sse", true]) {
  test(`follows JSON live, live=${live}`, { timeout }, async () => {
    const handle = await create("live", json)
    await handle.append('{"n":0}')
    const items = await follow(handle.url, live, 5, ({ n }) => handle.append(JSON.stringify({ n: n + 1 })))
    assert.deepEqual(items, [0, 1, 2, 3, 4].map((n) => ({ n })))
  })
}

test("follows text live by SSE, line ends included", { timeout }, async () => {
  const handle = await create("sse-text", text)
  const parts = ["first\n", "second\r\nthird", "\n\ndata: not a field\n"]
  // SSE has one kind of line end; a carriage return does not survive it, by design of the format.
  const expected = parts.map((part) => part.replaceAll("\r\n", "\n"))
  let written = 0
  let seen = ""
  await handle.append(parts[written++])
  await until({ url: handle.url, live: "sse" }, "subscribeText", async (chunk) => {
    seen += chunk.text
    if (seen.length < expected.slice(0, written).join("").length) return false
    if (written < parts.length) await handle.append(parts[written++])
    else return true
  })
  assert.equal(seen, expected.join(""))
})

test("follows bytes live by SSE", { timeout }, async () => {
  const bytes = Uint8Array.from({ length: 256 }, (_, i) => i)
  const handle = await create("sse-bytes", "application/octet-stream")
  await handle.append(bytes)
  const seen = []
  await until({ url: handle.url, live: "sse" }, "subscribeBytes", async (chunk) => {
    const before = seen.length
    seen.push(...chunk.data)
    if (before < 256 && seen.length >= 256) await handle.append(bytes)
    return seen.length >= 512
  })
  assert.deepEqual(seen, [...bytes, ...bytes])
})

for (const live of ["long-poll", "sse"]) {
  test(`a live reader gets the last message and then the end, live=${live}`, { timeout }, async () => {
    const handle = await create("end", json)
    await handle.append('{"n":0}')
    const items = []
    let closing
    await until({ url: handle.url, live }, "subscribeJson", async (batch) => {
      items.push(...batch.items)
      closing ??= handle.close({ body: '{"n":1}' })
      await closing
      return batch.streamClosed
    })
    assert.deepEqual(items, [{ n: 0 }, { n: 1 }])
  })
}

test("close: idempotent, final, and visible", { timeout }, async () => {
  const handle = await create("close", text)
  await handle.append("all")
  const closed = await handle.close()
  assert.deepEqual(await handle.close(), closed)
  assert.equal((await handle.head()).streamClosed, true)
  const conflict = (error) => error.status === 409
  await assert.rejects(handle.append("more"), conflict)
  await assert.rejects(handle.close({ body: "more" }), conflict)
  assert.equal(await readText(handle.url), "all")
})

test("Stream-Seq refuses what comes too late", { timeout }, async () => {
  const handle = await create("seq", text, { batching: false })
  await handle.append("a", { seq: "0002" })
  await assert.rejects(handle.append("b", { seq: "0001" }), (error) => error.status === 409)
  await handle.append("c", { seq: "0003" })
  assert.equal(await readText(handle.url), "ac")
})

test("delete: gone for readers and writers, and the path is free again", { timeout }, async () => {
  const handle = await create("delete", text)
  await handle.append("old")
  await handle.delete()
  const missing = (error) => error.status === 404
  await assert.rejects(stream({ url: handle.url, live: false }), missing)
  await assert.rejects(handle.append("more"), missing)
  assert.equal((await DurableStream.head({ url: handle.url })).exists, false)
  const recreated = await DurableStream.create({ url: handle.url, contentType: json })
  assert.deepEqual(await readJson(recreated.url), [])
})

test("appends issued at once arrive in order", { timeout }, async () => {
  const handle = await create("batch", json)
  await Promise.all(Array.from({ length: 200 }, (_, n) => handle.append(JSON.stringify(n))))
  assert.deepEqual(await readJson(handle.url), Array.from({ length: 200 }, (_, n) => n))
})

test("appendStream and writable pipe a source into a stream", { timeout }, async () => {
  const handle = await create("pipe", text)
  await handle.appendStream(
    (async function* () {
      yield "one "
      yield "two "
    })()
  )
  const writer = handle.writable({ producerId: "pipe" }).getWriter()
  await writer.write("three")
  await writer.close()
  assert.equal(await readText(handle.url), "one two three")
})

test("producer: many batches in flight, each message once and in order", { timeout }, async () => {
  const handle = await create("producer", json)
  const errors = []
  const producer = new IdempotentProducer(handle, "p", {
    lingerMs: 0,
    maxBatchBytes: 64,
    maxInFlight: 5,
    onError: (error) => errors.push(error),
  })
  for (let n = 0; n < 100; n++) producer.append(JSON.stringify({ n }))
  await producer.flush()
  assert.deepEqual(errors, [])
  assert.ok(producer.nextSeq > 5, "one batch would prove nothing")
  assert.deepEqual(await readJson(handle.url), Array.from({ length: 100 }, (_, n) => ({ n })))
})

test("producer: a request that was sent twice counts once", { timeout }, async () => {
  const handle = await create("retry", json)
  const statuses = []
  const twice = async (...request) => {
    const first = await fetch(...request)
    await first.arrayBuffer()
    const second = await fetch(...request)
    statuses.push([first.status, second.status])
    return second
  }
  const producer = new IdempotentProducer(handle, "p", { fetch: twice, maxInFlight: 1 })
  for (let n = 0; n < 3; n++) {
    producer.append(JSON.stringify({ n }))
    await producer.flush()
  }
  assert.deepEqual(statuses, [[200, 204], [200, 204], [200, 204]])
  assert.deepEqual(await readJson(handle.url), [{ n: 0 }, { n: 1 }, { n: 2 }])
})

test("producer: autoClaim takes over, and the one before is fenced", { timeout }, async () => {
  const handle = await create("claim", json)
  const fenced = []
  const before = new IdempotentProducer(handle, "p", { epoch: 3, onError: (error) => fenced.push(error) })
  before.append('{"from":"before"}')
  await before.flush()

  const after = new IdempotentProducer(handle, "p", { epoch: 0, autoClaim: true })
  after.append('{"from":"after"}')
  await after.flush()
  assert.equal(after.epoch, 4)

  before.append('{"from":"too late"}')
  await before.flush().catch(() => {})
  assert.equal(fenced.length, 1)
  assert.ok(fenced[0] instanceof StaleEpochError)
  assert.equal(fenced[0].currentEpoch, 4)
  assert.deepEqual(await readJson(handle.url), [{ from: "before" }, { from: "after" }])
})

test("producer: restart begins a new epoch at 0", { timeout }, async () => {
  const handle = await create("restart", json)
  const producer = new IdempotentProducer(handle, "p")
  producer.append("1")
  await producer.restart()
  producer.append("2")
  await producer.flush()
  assert.deepEqual([producer.epoch, producer.nextSeq], [1, 1])
  assert.deepEqual(await readJson(handle.url), [1, 2])
})

test("producer: close with a final message, sent twice, closes once", { timeout }, async () => {
  const handle = await create("producer-close", json)
  const twice = async (...request) => {
    await (await fetch(...request)).arrayBuffer()
    return fetch(...request)
  }
  const producer = new IdempotentProducer(handle, "p", { fetch: twice })
  producer.append('{"n":0}')
  const { finalOffset } = await producer.close('{"n":1}')
  const head = await handle.head()
  assert.equal(head.streamClosed, true)
  assert.equal(head.offset, finalOffset)
  assert.deepEqual(await readJson(handle.url), [{ n: 0 }, { n: 1 }])
})
