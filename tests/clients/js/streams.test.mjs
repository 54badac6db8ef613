// clients/js: streams, producers, retries and aborts, against a real server at TAILRACE_URL.
// Live tests wait for what they expect, never for a time: each write follows a read that was seen.
import assert from "node:assert/strict"
import { once } from "node:events"
import { createServer } from "node:net"
import { test } from "node:test"
import { Client, TailraceError } from "../../../clients/js/tailrace.js"
import { connect, deferred, faulty, fresh, range, rejects, timeout, unavailable, url } from "./support.mjs"

const client = connect()
const text = { contentType: "text/plain" }
const bytes = { contentType: "application/octet-stream" }

async function created(name, options) {
  const stream = client.stream(fresh(name), options)
  await stream.create()
  return stream
}

const all = async (stream) => (await stream.read()).messages

test("JSON: create, append, read, head, close, delete", { timeout }, async () => {
  const stream = client.stream(`js/ä b/${fresh("%")}`)
  assert.deepEqual(await stream.create({ body: { n: 0 } }), { offset: (await stream.head()).offset, created: true })
  assert.equal((await stream.create()).created, false)
  const { offset } = await stream.append([1, "one"])
  await stream.appendMany([{ n: 2 }, null, "Grüße ☃"])
  const first = await stream.read()
  assert.deepEqual(first.messages, [{ n: 0 }, [1, "one"], { n: 2 }, null, "Grüße ☃"])
  assert.deepEqual([first.upToDate, first.closed, first.empty], [true, false, false])
  assert.deepEqual((await stream.read({ offset })).messages, [{ n: 2 }, null, "Grüße ☃"])
  assert.equal((await stream.read({ offset: first.offset })).empty, true)

  const closed = await stream.close()
  assert.deepEqual(await stream.close(), closed)
  const state = await stream.head()
  assert.deepEqual([state.contentType, state.closed, state.offset], ["application/json", true, closed.offset])
  assert.equal((await stream.read()).closed, true)
  await rejects(stream.append(1), { status: 409, code: "STREAM_CLOSED" })
  await stream.delete()
  await rejects(stream.head(), { status: 404, code: "NOT_FOUND" })
  await rejects(stream.delete(), { status: 404, code: "NOT_FOUND" })
})

test("text and bytes come back as they were, and options are kept", { timeout }, async () => {
  const words = client.stream(fresh("text"), text)
  await words.create({ ttlMs: 3_600_000, maxAgeMs: 60_000, maxBytes: 1_000_000 })
  await words.append("one\r\n")
  await words.append(new TextEncoder().encode("zwölf"))
  assert.equal((await words.read()).text, "one\r\nzwölf")
  const { ttlMs, maxAgeMs, maxBytes } = await words.head()
  assert.deepEqual({ ttlMs, maxAgeMs, maxBytes }, { ttlMs: 3_600_000, maxAgeMs: 60_000, maxBytes: 1_000_000 })

  const data = Uint8Array.from({ length: 100_000 }, (_, at) => at % 256)
  const raw = await created("bytes", bytes)
  await raw.append(data)
  assert.deepEqual((await raw.read()).bytes, data)
  await raw.append(data, { close: true })
  assert.equal((await raw.head()).closed, true)
})

test("misuse is refused before anything is sent", { timeout }, async () => {
  const stream = client.stream("never")
  await assert.rejects(stream.append(undefined), TypeError)
  await assert.rejects(stream.appendMany([]), TypeError)
  await assert.rejects(client.stream("never", bytes).append(7), TypeError)
  await assert.rejects(client.stream("never", text).append(""), TypeError)
  await assert.rejects(stream.create({ ttlMs: 1 }), TypeError)
  assert.throws(() => client.stream("a//b"), TypeError)
  assert.throws(() => new Client("ftp://example"), TypeError)
  assert.throws(() => new Client(url, { token: "t", user: "u", password: "p" }), TypeError)
  assert.throws(() => new Client(url, { user: "u" }), TypeError)
  assert.throws(() => stream.producer({ id: "a b" }), TypeError)
})

test("Stream-Seq, another content type, a bad offset: errors have status, code and message", { timeout }, async () => {
  const stream = await created("errors")
  await stream.append(1, { sequence: "b" })
  await rejects(stream.append(2, { sequence: "a" }), { status: 409, code: "SEQUENCE_REGRESSION" })
  await rejects(client.stream(stream.path, text).append("x"), { status: 409, code: "CONTENT_TYPE_MISMATCH" })
  await rejects(stream.read({ offset: "nonsense" }), { status: 400, code: "INVALID_OFFSET" })
  await assert.rejects(client.stream(fresh("none")).read(), (error) => {
    assert.ok(error instanceof TailraceError)
    assert.match(error.message, /there is no stream/)
    assert.equal(error.transient, false)
    return true
  })
})

for (const live of ["auto", "sse", "long-poll"]) {
  test(`follow JSON until the end, live=${live}`, { timeout }, async () => {
    const stream = await created("follow")
    await stream.append(0)
    const seen = []
    for await (const page of stream.follow({ live })) {
      seen.push(...page.messages)
      const next = seen.length
      if (next < 5) await stream.appendMany([next, next + 1])
      else await stream.close()
    }
    assert.deepEqual(seen, range(0, 5))
  })
}

for (const live of ["auto", "sse", "long-poll"]) {
  test(`follow bytes, live=${live}`, { timeout }, async () => {
    const data = Uint8Array.from({ length: 300_000 }, (_, at) => (at * 7) % 256)
    const stream = await created("follow-bytes", bytes)
    await stream.append(data)
    const seen = []
    for await (const page of stream.follow({ live })) {
      const before = seen.length
      for (const byte of page.bytes) seen.push(byte)
      if (seen.length === 2 * data.length) break
      if (before === 0) await stream.append(data)
    }
    assert.deepEqual(Uint8Array.from(seen), Uint8Array.from([...data, ...data]))
  })
}

test("follow text: carriage returns are kept", { timeout }, async () => {
  const parts = ["one\r\n", "\n\r", " two\ndata: not a field\n\n", "zwölf"]
  const stream = await created("follow-text", text)
  await stream.append(parts[0])
  let seen = ""
  for await (const page of stream.follow()) {
    seen += page.text
    const next = parts.findIndex((_, at) => seen.length < parts.slice(0, at + 1).join("").length)
    if (next < 0) break
    await stream.append(parts[next])
  }
  assert.equal(seen, parts.join(""))
})

test("follow from now, and from an offset", { timeout }, async () => {
  const stream = await created("now")
  await stream.append("before")
  const { offset } = await stream.head()
  const pages = stream.follow({ offset: "now" })
  const first = pages.next()
  let done = false
  void first.finally(() => (done = true))
  for (let n = 0; !done; n++) await stream.append(n) // the first of them that comes after now
  const { value } = await first
  assert.ok(!value.messages.includes("before"))
  await pages.return()
  for await (const page of stream.follow({ offset })) {
    assert.deepEqual(page.messages[0], 0)
    break
  }
})

test("follow: a stream that does not exist, and one that is deleted meanwhile", { timeout }, async () => {
  await rejects(client.stream(fresh("none")).follow().next(), { status: 404, code: "NOT_FOUND" })
  const stream = await created("deleted")
  await stream.append(1)
  await rejects(
    (async () => {
      for await (const _ of stream.follow()) await stream.delete()
    })(),
    { status: 404, code: "NOT_FOUND" },
  )
})

test("follow: what is cut off between data and its offset is read again, not doubled", { timeout }, async () => {
  const stream = await created("cut")
  await stream.append(0)
  let cut = 0
  const cutting = async (target, init) => {
    const response = await fetch(target, init)
    if (!target.includes("live=sse") || cut >= 3) return response
    // Ends in the middle of the control event after the second data event: that data came without an offset.
    const reader = response.body.getReader()
    let sent = ""
    const body = new ReadableStream({
      async pull(controller) {
        const { value, done } = await reader.read()
        if (done) return controller.close()
        sent += new TextDecoder().decode(value)
        const second = sent.indexOf("event: data", sent.indexOf("event: data") + 1)
        const end = sent.indexOf("event: control", second)
        if (second <= 0 || end < 0) return controller.enqueue(value)
        cut++
        controller.enqueue(new TextEncoder().encode(sent.slice(0, end + 20)).slice(sent.length - value.length))
        controller.error(new TypeError("terminated"))
        void reader.cancel()
      },
    })
    return new Response(body, response)
  }
  const seen = []
  for await (const page of connect({ fetch: cutting }).stream(stream.path).follow()) {
    seen.push(...page.messages)
    if (seen.length >= 9) break
    await stream.append(seen.length)
  }
  assert.deepEqual(seen, range(0, 9))
  assert.equal(cut, 3)
})

for (const live of ["sse", "long-poll"]) {
  test(`follow: a server that refuses for now is asked again when it says, live=${live}`, { timeout }, async () => {
    const stream = await created("refused")
    await stream.append(0)
    const times = []
    const refusals = [{ status: 429, headers: { "retry-after": "1" } }, "refuse", unavailable, { status: 502 }]
    // The first request gets its response; those after it are refused one by one, while there are new messages.
    const plan = (n) => (times.push(performance.now()), n === 0 ? undefined : refusals[n - 1])
    const seen = []
    for await (const page of connect({ fetch: faulty(/GET/, plan) }).stream(stream.path).follow({ live })) {
      seen.push(...page.messages)
      if (seen.length >= 6) break
      await stream.append(seen.length)
    }
    assert.deepEqual(seen, range(0, 6))
    assert.ok(times.length > refusals.length + 1)
    assert.ok(times[2] - times[1] >= 990, String(times[2] - times[1]))
  })
}

test("abort: a read, a follow, a retry; what is not sent is not sent", { timeout }, async () => {
  const stream = await created("abort")
  const reason = new Error("enough")
  const same = (error) => error === reason
  const aborted = AbortSignal.abort(reason)
  await assert.rejects(stream.append(1, { signal: aborted }), same)
  await assert.rejects(stream.read({ signal: aborted }), same)
  await assert.rejects(client.sql("SELECT 1", [], { signal: aborted }), same)
  await assert.rejects(stream.producer().append(1, { signal: aborted }), same)
  assert.deepEqual(await all(stream), [])

  for (const live of ["sse", "long-poll"]) {
    const controller = new AbortController()
    const waiting = deferred()
    const watching = (target, init) => {
      if (target.includes(`live=${live}`)) waiting.resolve()
      return fetch(target, init)
    }
    const next = connect({ fetch: watching }).stream(stream.path).follow({ live, signal: controller.signal }).next()
    await waiting.promise
    controller.abort(reason)
    await assert.rejects(next, same)
  }

  const controller = new AbortController()
  const later = faulty(/GET/, () => (controller.abort(reason), { ...unavailable, headers: { "retry-after": "1000" } }))
  const slow = connect({ fetch: later, retryForMs: 1e9 }).stream(stream.path)
  await assert.rejects(slow.read({ signal: controller.signal }), same)
})

test("requests that may be repeated are; others only if the server did not get them", { timeout }, async () => {
  const stream = await created("retry")
  const first = (step) => faulty(/\/v1\/stream\//, (n) => (n === 0 ? step : undefined))
  for (const step of ["refuse", { ...unavailable, body: { error: { code: "QUEUE_FULL", message: "later" } } }, { status: 429 }]) {
    const fetch = first(step)
    await connect({ fetch }).stream(stream.path).append("appended")
    assert.equal(fetch.count, 2)
  }
  for (const [step, expected] of [["lose", { status: 0, code: "CONNECTION_FAILED" }], [unavailable, { status: 503, code: "UNAVAILABLE" }]]) {
    const fetch = first(step)
    await rejects(connect({ fetch }).stream(stream.path).append("unknown"), expected)
    assert.equal(fetch.count, 1)
  }
  assert.deepEqual(await all(stream), ["appended", "appended", "appended", "unknown"])
  for (const step of ["lose", "refuse", unavailable, { status: 502 }]) {
    assert.equal((await connect({ fetch: first(step) }).stream(stream.path).read()).messages.length, 4)
    await connect({ fetch: first(step) }).stream(stream.path).close()
  }
  await connect({ fetch: first("lose") }).stream(stream.path).delete() // the second request finds nothing
  const limit = { status: 429, body: { error: { code: "LIMIT_EXCEEDED", message: "no more" } } }
  await rejects(connect({ fetch: first(limit) }).stream(stream.path).create(), { status: 429, code: "LIMIT_EXCEEDED" })
})

test("Retry-After is waited for, if there is time", { timeout }, async () => {
  const stream = await created("after")
  const times = []
  const plan = (n) => (times.push(Date.now()), n === 0 ? { ...unavailable, headers: { "retry-after": "1" } } : undefined)
  await connect({ fetch: faulty(/GET/, plan), retryForMs: 1e9 }).stream(stream.path).read()
  assert.equal(times.length, 2)
  assert.ok(times[1] - times[0] >= 990, String(times[1] - times[0]))
  const hasty = connect({ fetch: faulty(/GET/, () => (times.push(0), { ...unavailable, headers: { "retry-after": "1" } })), retryForMs: 500 })
  await rejects(hasty.stream(stream.path).read(), { status: 503, retryAfterMs: 1000 })
  assert.equal(times.length, 3)
})

test("a server that is not there, one that is silent, and one that is another", { timeout }, async () => {
  const listener = createServer().listen(0, "127.0.0.1")
  await once(listener, "listening")
  const { port } = listener.address()
  listener.close()
  await once(listener, "close")
  const nowhere = new Client(`http://127.0.0.1:${port}`, { retryForMs: 300 })
  await rejects(nowhere.stream("s").append(1), { status: 0, code: "CONNECTION_FAILED", transient: true, unsent: true })
  await rejects(nowhere.stream("s").follow().next(), { code: "CONNECTION_FAILED" })
  const silent = (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)))
  await rejects(connect({ fetch: silent, timeoutMs: 50, retryForMs: 0 }).stream("s").read(), { status: 0, code: "TIMEOUT" })
  const html = async () => new Response("<html>", { status: 200 })
  await rejects(connect({ fetch: html }).topics(), { code: "NOT_JSON", transient: false })
  const consumer = connect({ fetch: html }).consumer({ topic: "t", groupId: "g" })
  await rejects(consumer.run(() => undefined), { code: "NOT_JSON" })
  const error = async () => new Response("<html>", { status: 418 })
  await rejects(connect({ fetch: error }).topics(), { status: 418, code: "HTTP_ERROR" })
})

test("producer: what is pending is sent together, in order", { timeout }, async () => {
  const stream = await created("batches")
  const fetch = faulty(/POST/, () => undefined)
  const producer = connect({ fetch }).stream(stream.path).producer()
  const done = await Promise.all(range(0, 500).map((n) => producer.append({ n })))
  assert.equal(fetch.count, 1)
  assert.deepEqual(done[499], { offset: (await stream.head()).offset, duplicate: false })
  await Promise.all(range(0, 4).map((n) => producer.append("x".repeat(400_000) + n))) // more than a request holds
  assert.equal(fetch.count, 3)
  const messages = await all(stream)
  assert.deepEqual(messages.slice(0, 500), range(0, 500).map((n) => ({ n })))
  assert.deepEqual(messages.slice(500).map((each) => each.at(-1)), ["0", "1", "2", "3"])
  await producer.close()
  await assert.rejects(producer.append(1), TypeError)
})

test("producer: text and bytes", { timeout }, async () => {
  const stream = await created("producer-bytes", bytes)
  const producer = stream.producer()
  await Promise.all([producer.append(Uint8Array.of(1, 2)), producer.append(Uint8Array.of(255))])
  assert.deepEqual((await stream.read()).bytes, Uint8Array.of(1, 2, 255))
  await assert.rejects(producer.append({ not: "bytes" }), TypeError)
})

test("producer: lost responses double nothing", { timeout }, async () => {
  const stream = await created("lost")
  const steps = ["lose", "refuse", "lose", undefined, unavailable, "lose", undefined]
  const fetch = faulty(/POST/, (n) => steps[n % steps.length])
  const producer = connect({ fetch }).stream(stream.path).producer()
  for (const n of range(0, 6)) await producer.append(n)
  assert.deepEqual(await all(stream), range(0, 6))
})

test("producer: after an unknown outcome its number is not used again", { timeout }, async () => {
  const stream = await created("unknown")
  const fetch = faulty(/POST/, (n) => (n < 2 ? "lose" : undefined))
  const producer = connect({ fetch }).stream(stream.path).producer({ retryForMs: 0 })
  const { epoch } = producer
  await rejects(producer.append("a"), { code: "CONNECTION_FAILED" })
  assert.ok(producer.epoch > epoch)
  await rejects(producer.append("b"), { code: "CONNECTION_FAILED" })
  await producer.append("c")
  assert.deepEqual(await all(stream), ["a", "b", "c"])
})

test("producer: a later run fences the one before; a clock that was ahead does not matter", { timeout }, async () => {
  const stream = await created("fence")
  const before = stream.producer({ id: "p", epoch: Date.now() + 1_000_000 })
  await before.append("before")
  const after = stream.producer({ id: "p" })
  await after.append("after")
  assert.ok(after.epoch > before.epoch)
  await rejects(before.append("too late"), { status: 403, code: "STALE_EPOCH", details: { epoch: after.epoch } })
  const twin = stream.producer({ id: "p", epoch: after.epoch }) // its first request has the number of an earlier one
  await twin.append("twin")
  assert.deepEqual(await all(stream), ["before", "after", "twin"])
})

test("producer: a stream that was recreated, or is closed; an abort of what is pending", { timeout }, async () => {
  const stream = await created("recreated")
  const producer = stream.producer()
  await producer.append(1)
  await stream.delete()
  await rejects(producer.append(2), { status: 404 })
  await stream.create()
  await producer.append(3)
  assert.deepEqual(await all(stream), [3])
  const controller = new AbortController()
  const pending = producer.append(4, { signal: controller.signal })
  const other = producer.append(5)
  controller.abort(new Error("enough"))
  await assert.rejects(pending, /enough/)
  await other
  assert.deepEqual(await all(stream), [3, 5])
  await stream.close()
  await rejects(producer.append(6), { status: 409, code: "STREAM_CLOSED" })
})
