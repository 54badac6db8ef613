// clients/js: tables, topics, consumers and SQL, against a real server at TAILRACE_URL.
// Nothing waits for a time: handlers wait for each other, and for what they expect.
import assert from "node:assert/strict"
import { spawn } from "node:child_process"
import { test } from "node:test"
import { fileURLToPath } from "node:url"
import { Decimal, VERSION, fromAttribute, toAttribute } from "../../../clients/js/tailrace.js"
import { connect, deferred, faulty, fresh, groupOf, range, rejects, timeout, unavailable, until, url } from "./support.mjs"

const client = connect()
const quiet = () => undefined

async function table(columns = "id TEXT PRIMARY KEY") {
  const name = fresh("table").replaceAll(".", "_")
  await client.sql(`CREATE TABLE ${name} (${columns}) WITH (stream = 'NEW_AND_OLD_IMAGES')`)
  return client.table(name)
}

async function topic(partitions = 1, options = "") {
  const name = `js.${fresh("topic").replaceAll(".", "_")}`
  await client.sql(`CREATE TOPIC ${name} PARTITIONS ${partitions} ${options}`)
  return client.topic(name)
}

// -- SQL

test("SQL: parameters of every kind, several statements, errors with their place", { timeout }, async () => {
  const things = await table("id TEXT PRIMARY KEY, n DECIMAL, raw BLOB, done BOOLEAN")
  const big = 12345678901234567890123n
  const insert = `INSERT INTO ${things.name} VALUES (?, ?, ?, ?)`
  const [inserted] = await client.sql(insert, ["a", big, Uint8Array.of(0, 255), true])
  assert.equal(inserted.rowCount, 1)
  await client.sql(insert, ["b", new Decimal("7"), null, undefined])
  const results = await client.sql(`SELECT id, CAST(n AS TEXT) AS n, done FROM ${things.name} ORDER BY id; SELECT 1 AS one`)
  assert.deepEqual(results[0].rows, [{ id: "a", n: String(big), done: true }, { id: "b", n: "7", done: null }])
  assert.deepEqual(results[0].columns.map(({ name }) => name), ["id", "n", "done"])
  assert.deepEqual([results[1].statement, results[1].rows], ["SELECT", [{ one: 1 }]])
  assert.deepEqual((await things.get({ id: "a" })).raw, Uint8Array.of(0, 255))

  await assert.rejects(client.sql("SELECT 1 AS a; SELEC 2"), (error) => {
    assert.deepEqual([error.status, error.code, error.details.line, error.details.column], [400, "SQL_SYNTAX", 1, 16])
    assert.match(error.message, /found 'SELEC'/)
    return true
  })
  await rejects(client.sql(insert, ["a", 1, null, null]), { status: 409, code: "DUPLICATE_KEY" })
})

test("SQL is repeated after a lost response only if it is repeatable", { timeout }, async () => {
  const lose = () => faulty(/sql/, (n) => (n === 0 ? "lose" : undefined))
  await rejects(connect({ fetch: lose() }).sql("SELECT 1 AS n"), { code: "CONNECTION_FAILED" })
  const [{ rows }] = await connect({ fetch: lose() }).sql("SELECT 1 AS n", [], { repeatable: true })
  assert.deepEqual(rows, [{ n: 1 }])
})

test("any request of the HTTP API and of the DynamoDB API", { timeout }, async () => {
  assert.equal((await client.request("GET", "/openapi.json")).openapi, "3.1.0")
  assert.match(await client.request("GET", "/metrics"), /^# HELP/)
  assert.ok((await client.call("ListTables")).TableNames)
  await rejects(client.call("PutItem", { TableName: "none-such", Item: {} }), { status: 400, code: "ResourceNotFoundException" })
  assert.match(VERSION, /^\d+\.\d+\.\d+$/)
})

// -- tables

test("values keep their types and all their digits", { timeout }, async () => {
  const things = await table()
  const item = {
    id: "all", text: "Grüße ☃", whole: -42, part: 0.25, tiny: 1e-100, safe: Number.MAX_SAFE_INTEGER, yes: true, no: null,
    bytes: Uint8Array.from({ length: 256 }, (_, n) => n), list: [1, ["a"], { b: [] }], map: { deep: { er: 1 } },
    words: new Set(["a", "b"]), numbers: new Set([1, 2.5]), empty: {}, left: undefined,
  }
  await things.put(item)
  const { left, ...stored } = item
  assert.equal(left, undefined)
  assert.deepEqual(await things.get({ id: "all" }), stored)
  const digits = "1234567890.1234567890123456789"
  await things.put({ id: "exact", big: 2n ** 100n, decimal: new Decimal(digits) })
  const exact = await things.get({ id: "exact" })
  assert.deepEqual([String(exact.big), String(exact.decimal)], [String(2n ** 100n), digits])
  await things.put(exact) // as it was read
  assert.deepEqual(await things.get({ id: "exact" }), exact)
  assert.deepEqual(fromAttribute(toAttribute(new Set([Uint8Array.of(1)]))), new Set([Uint8Array.of(1)]))
  for (const wrong of [Infinity, new Date(), () => 1, new Set(), new Set([1, "a"]), Symbol("s"), new Map()]) {
    assert.throws(() => toAttribute(wrong), TypeError)
  }
  assert.throws(() => new Decimal("many"), TypeError)
})

test("items: conditions, old items, updates, deletes", { timeout }, async () => {
  const things = await table()
  assert.equal(await things.put({ id: "a", n: 1 }), undefined)
  assert.deepEqual(await things.put({ id: "a", n: 2 }, { returnOld: true }), { id: "a", n: 1 })
  const conflict = { status: 400, code: "ConditionalCheckFailedException", details: { item: { id: "a", n: 2 } } }
  await rejects(things.put({ id: "a", n: 3 }, { condition: "attribute_not_exists(id)" }), conflict)
  await rejects(things.delete({ id: "a" }, { condition: "#n = :n", names: { "#n": "n" }, values: { ":n": 7 } }), conflict)
  assert.deepEqual(await things.update({ id: "a" }, "SET n = n + :n", { values: { ":n": 5 } }), { id: "a", n: 7 })
  assert.deepEqual(await things.get({ id: "a" }, { projection: "n" }), { n: 7 })
  assert.deepEqual(await things.delete({ id: "a" }, { returnOld: true }), { id: "a", n: 7 })
  assert.equal(await things.get({ id: "a" }), undefined)
  await things.delete({ id: "a" })
  assert.equal((await things.describe()).TableName, things.name)
  await rejects(client.table("none-such").get({ id: "a" }), { status: 400, code: "ResourceNotFoundException" })
})

test("items: queries and scans, page by page", { timeout }, async () => {
  const things = await table("room TEXT, n BIGINT, body TEXT, PRIMARY KEY (room, n)")
  for (const n of range(0, 5)) await things.put({ room: "a", n, body: n % 2 ? "odd" : "even" })
  await things.put({ room: "b", n: 9, body: "odd" })
  const query = { key: "room = :room", values: { ":room": "a" } }
  const page = await things.query({ ...query, limit: 2 })
  assert.deepEqual([page.items.map(({ n }) => n), page.lastKey], [[0, 1], { room: "a", n: 1 }])
  assert.deepEqual((await things.query({ ...query, startKey: page.lastKey })).items.map(({ n }) => n), [2, 3, 4])
  const odd = { ...query, filter: "body = :odd", values: { ":room": "a", ":odd": "odd" }, descending: true, limit: 2 }
  const found = []
  for await (const { n } of things.queryAll(odd)) found.push(n)
  assert.deepEqual(found, [3, 1])
  const all = []
  for await (const { n } of things.scanAll({ limit: 2, projection: "n" })) all.push(n)
  assert.deepEqual(all.sort(), [0, 1, 2, 3, 4, 9])
  assert.equal((await things.scan()).lastKey, undefined)
})

test("lists, the past of a table, the trace of a write, the status", { timeout }, async () => {
  const things = await table("id TEXT PRIMARY KEY, n BIGINT")
  await things.put({ id: "a", n: 1 })
  await things.put({ id: "a", n: 2 })
  const { view, versions, next } = await things.history({ id: "a" })
  assert.deepEqual([view, versions.map(({ old, new: now }) => [old?.n, now.n]), next], ["NEW_AND_OLD_IMAGES", [[1, 2], [undefined, 1]], null])
  const before = await things.at({ sequence: versions[1].sequence })
  assert.deepEqual([before.items, before.next], [[{ id: "a", n: 1 }], null])
  assert.deepEqual((await things.at({ time: new Date(Date.now() + 60_000) })).items, [{ id: "a", n: 2 }])
  const trace = await things.trace(versions[0].sequence, { key: { id: "a" } })
  assert.deepEqual([trace.records[0].new, trace.messages, trace.kept.hot], [{ id: "a", n: 2 }, [], true])
  assert.equal((await client.tables({ prefix: things.name })).tables[0].items, 1)
  const stream = client.stream(fresh("listed"))
  await stream.create()
  const page = await client.streams({ search: stream.path.toUpperCase(), limit: 10 })
  assert.deepEqual(page.streams.map(({ path }) => path), [stream.path])
  assert.equal((await client.status()).ready, true)
  const { columns } = await client.samples({ stepS: 60 })
  assert.equal(columns.at_ms.length, columns.commits.length)
})

test("jobs are paused and resumed; who has consumed is on record", { timeout }, async () => {
  const name = fresh("job")
  await client.request("PUT", `/v1/jobs/${name}`, { headers: { "content-type": "application/json" }, body: '{"kind": "snapshot"}' })
  const listed = async () => (await client.jobs()).find((job) => job.name === name)
  assert.equal((await listed()).paused, false)
  assert.equal((await client.pauseJob(name)).paused, true)
  assert.ok((await listed()).paused_at)
  assert.equal((await client.resumeJob(name)).paused, false)
  await rejects(client.pauseJob(fresh("nobody")), { code: "JOB_NOT_FOUND" })
  const news = await topic()
  await news.publishMany(range(0, 3).map((n) => ({ payload: { n } })))
  const consumer = client.consumer({ topic: news.name, groupId: "g", onError: quiet })
  let seen = 0
  await consumer.run(async () => {
    if (++seen === 3) consumer.stop()
  })
  const found = await until(async () => {
    const acks = await news.acknowledgements("g", { limit: 10 })
    return acks.reduce((sum, each) => sum + each.last_offset - each.first_offset + 1, 0) === 3 && acks
  })
  assert.ok(found.every((each) => each.at && each.by && each.partition_id === 0))
})

test("a write is repeated only if twice has the effect of once", { timeout }, async () => {
  const things = await table()
  const lose = () => faulty(/POST \/$/, (n) => (n === 0 ? "lose" : undefined))
  const losing = () => connect({ fetch: lose() }).table(things.name)
  await losing().put({ id: "a", n: 1 })
  await rejects(losing().put({ id: "b" }, { condition: "attribute_not_exists(id)" }), { code: "CONNECTION_FAILED" })
  await rejects(losing().update({ id: "a" }, "SET n = n + :n", { values: { ":n": 1 } }), { code: "CONNECTION_FAILED" })
  assert.deepEqual(await losing().get({ id: "a" }), { id: "a", n: 2 })
  await losing().delete({ id: "a" })
})

test("changes are followed with a filter, and from the offset of any change", { timeout }, async () => {
  const things = await table("id TEXT PRIMARY KEY, n BIGINT")
  await things.put({ id: "a", n: 0 })
  await client.sql(`INSERT INTO ${things.name} (id, n) VALUES ('b', 1), ('c', 2)`) // one transaction
  await things.delete({ id: "a" })
  const seen = []
  let n = 3
  for await (const change of things.follow({ filter: (each) => each.keys.id !== "b" })) {
    seen.push(change)
    if (seen.length === 6) break
    if (seen.length >= 3) {
      await things.put({ id: "b", n: n++ }) // is filtered
      await things.put({ id: "c", n: n++ })
    }
  }
  assert.deepEqual(seen.slice(0, 3).map(({ event, keys, old, new: now }) => [event, keys.id, old?.n, now?.n]), [
    ["INSERT", "a", undefined, 0], ["INSERT", "c", undefined, 2], ["REMOVE", "a", 0, undefined],
  ])
  const { changes, upToDate } = await things.changes()
  assert.equal(upToDate, true)
  const after = { a0: changes[0], b1: changes[1], c2: changes[2] }
  const rest = async (offset) => (await things.changes({ offset })).changes.slice(0, 3).map(({ keys }) => keys.id)
  assert.deepEqual(await rest(after.a0.offset), ["b", "c", "a"])
  assert.deepEqual(await rest(after.b1.offset), ["b", "c", "a"]) // the rest of its transaction was not seen
  assert.deepEqual((await rest(after.c2.offset))[0], "a")
  const controller = new AbortController()
  const waiting = things.follow({ offset: "now", signal: controller.signal }).next()
  controller.abort()
  await assert.rejects(waiting, { name: "AbortError" })
})

// -- topics

test("publish: text, bytes and JSON, by key and partition; follow and read a partition", { timeout }, async () => {
  const news = await topic(2)
  const at = await news.publish({ n: 0 }, { partition: 1 })
  assert.deepEqual(at, { partition: 1, offset: 0 })
  const [first, second] = await news.publishMany([{ payload: "eins", partition: 1 }, { payload: Uint8Array.of(0, 255), key: "käy" }])
  assert.deepEqual(first, { partition: 1, offset: 1 })
  const keyed = (await news.read({ partition: second.partition, offset: second.offset })).messages[0]
  assert.deepEqual([keyed.payload, keyed.key, keyed.op, keyed.attempt], [Uint8Array.of(0, 255), "käy", "Publish", 0])
  assert.ok(keyed.at instanceof Date)
  const seen = []
  for await (const message of news.follow({ partition: 1, filter: (each) => !each.key })) {
    seen.push(message.text())
    if (seen.length === 4) break
    if (seen.length >= 2) await news.publish(`${seen.length}`, { partition: 1 })
  }
  assert.deepEqual(seen, ['{"n":0}', "eins", "2", "3"])
  assert.equal((await news.describe()).partitions, 2)
  assert.ok((await client.topics()).some(({ name }) => name === news.name))
  await rejects(client.topic("no.such").publish("x"), { status: 404, code: "TOPIC_NOT_FOUND" })
  await rejects(news.publish("x", { partition: 7 }), { status: 400, code: "NO_SUCH_PARTITION" })
})

test("a topic's producer: lost responses double nothing", { timeout }, async () => {
  const news = await topic()
  const fetch = faulty(/POST/, (n) => ["lose", undefined, unavailable, "lose", "refuse"][n % 5])
  const producer = connect({ fetch }).topic(news.name).producer()
  const one = await producer.append({ payload: 0 })
  assert.equal(one, undefined) // its position was in the response that was lost
  for (const n of range(0, 4)) await Promise.all([producer.append({ payload: 2 * n + 1 }), producer.append({ payload: 2 * n + 2 })])
  const { messages } = await news.read()
  assert.deepEqual(messages.map((each) => each.json()), range(0, 9))
  assert.deepEqual(await news.producer().append({ payload: "x" }), { partition: 0, offset: 9 })
})

// -- consumers

test("a consumer processes messages in order and acknowledges them; stop ends the run", { timeout }, async () => {
  const news = await topic()
  await news.publishMany(range(0, 20).map((payload) => ({ payload })))
  const consumer = client.consumer({ topic: news.name, groupId: "g", batch: 7, onError: quiet })
  const seen = []
  await consumer.run(async (context) => {
    assert.equal(context.message.attempt, 1)
    seen.push(context.json())
    if (seen.length === 20) consumer.stop()
  })
  assert.deepEqual(seen, range(0, 20))
  assert.deepEqual(await groupOf(client, news.name, "g"), { lag: 0, in_flight: 0, pending: 0, delivered: 20, redelivered: 0 })
  await assert.rejects(consumer.run(quiet), TypeError)
})

test("stop: the message in work is finished, all others are returned at once", { timeout }, async () => {
  const news = await topic()
  await news.publishMany(range(0, 10).map((payload) => ({ payload })))
  const stopped = client.consumer({ topic: news.name, groupId: "g", onError: quiet })
  const seen = []
  await stopped.run(async (context) => {
    stopped.stop()
    await until(async () => true)
    seen.push(context.json())
  })
  assert.deepEqual(seen, [0])
  const { lag, in_flight, pending } = await groupOf(client, news.name, "g")
  assert.deepEqual({ lag, in_flight, pending }, { lag: 9, in_flight: 0, pending: 9 })
  const idle = client.consumer({ topic: news.name, groupId: "other", start: "latest", timeoutMs: 240_000, onError: quiet })
  const running = idle.run(quiet)
  await until(async () => (await news.describe()).groups.some((each) => each.group_id === "other"))
  idle.stop() // ends the wait for messages
  await running
  const never = client.consumer({ topic: news.name, groupId: "never" })
  never.stop()
  await never.run(() => assert.fail("a consumer that was stopped has run"))
})

test("concurrency: so many handlers at once, and no more; they may end in any order", { timeout }, async () => {
  const news = await topic(3)
  await news.publishMany(range(0, 60).map((payload) => ({ payload, partition: payload % 3 })))
  const consumer = client.consumer({ topic: news.name, groupId: "g", concurrency: 4, batch: 10, partitions: [0, 1, 2], onError: quiet })
  const seen = []
  let running = 0
  let most = 0
  let barrier = []
  await consumer.run(async (context) => {
    most = Math.max(most, ++running)
    const turn = deferred()
    barrier.push(turn)
    if (barrier.length === 4) barrier.splice(0).reverse().forEach(({ resolve }) => resolve()) // the last one first
    await turn.promise
    running--
    seen.push(context.json())
    if (seen.length === 60) consumer.stop()
  })
  assert.equal(most, 4)
  assert.deepEqual(seen.sort((a, b) => a - b), range(0, 60))
  assert.deepEqual(await groupOf(client, news.name, "g"), { lag: 0, in_flight: 0, pending: 0, delivered: 60, redelivered: 0 })
})

test("a handler that fails gets its message again; the others go on; nack delays", { timeout }, async () => {
  const news = await topic(1)
  await news.publishMany(["good", "throws", "nacks", "better"].map((payload) => ({ payload })))
  const errors = []
  const onError = (error, message) => errors.push([error.message, message?.text()])
  const consumer = client.consumer({ topic: news.name, groupId: "g", retryMs: 50, onError })
  const seen = []
  await consumer.run(async (context) => {
    const word = context.message.text()
    seen.push(`${word} ${context.message.attempt}`)
    if (word === "throws" && context.message.attempt < 3) throw new Error("not yet")
    if (word === "nacks" && context.message.attempt === 1) await context.nack({ delayMs: 50 })
    if (seen.length === 7) consumer.stop()
  })
  assert.deepEqual(seen.slice(0, 4), ["good 1", "throws 1", "nacks 1", "better 1"])
  assert.deepEqual(seen.slice(4).sort(), ["nacks 2", "throws 2", "throws 3"])
  assert.deepEqual(errors, [["not yet", "throws"], ["not yet", "throws"]])
  const { lag, in_flight } = await groupOf(client, news.name, "g")
  assert.deepEqual({ lag, in_flight }, { lag: 0, in_flight: 0 })
})

test("a handler that ends after others: a crash would lose nothing, as only the prefix is acknowledged", { timeout }, async () => {
  const news = await topic()
  await news.publishMany(range(0, 4).map((payload) => ({ payload })))
  const consumer = client.consumer({ topic: news.name, groupId: "g", concurrency: 4, ackEveryMs: 1, onError: quiet })
  const first = deferred()
  let others = 0
  const running = consumer.run(async (context) => {
    if (context.json() === 0) await first.promise
    else others++
  })
  await until(() => others === 3)
  assert.equal((await groupOf(client, news.name, "g")).lag, 4)
  first.resolve()
  await until(async () => (await groupOf(client, news.name, "g")).lag === 0)
  consumer.stop()
  await running
})

test("leases are extended while a handler works", { timeout }, async () => {
  const news = await topic()
  await news.publish("long work")
  const fetch = faulty(/extend$/, () => undefined)
  const consumer = connect({ fetch }).consumer({ topic: news.name, groupId: "g", visibilityMs: 3_000, onError: quiet })
  await consumer.run(async (context) => {
    await context.extend()
    const before = fetch.count
    await context.extend(60_000)
    await until(() => fetch.count >= before + 3) // by the heartbeat, which keeps the longer time
    assert.equal(context.signal.aborted, false)
    consumer.stop()
  })
  assert.deepEqual(await groupOf(client, news.name, "g"), { lag: 0, in_flight: 0, pending: 0, delivered: 1, redelivered: 0 })
})

test("a lease that is lost aborts the handler's signal, and its message is not acknowledged", { timeout }, async () => {
  const news = await topic()
  await news.publish("contested")
  const consumer = client.consumer({ topic: news.name, groupId: "g", visibilityMs: 300, timeoutMs: 100, onError: quiet })
  const attempts = []
  await consumer.run(async (context) => {
    attempts.push(context.message.attempt)
    if (attempts.length > 1) return consumer.stop()
    const aborted = new Promise((resolve) => context.signal.addEventListener("abort", resolve))
    await client.sql(`RESET CONSUMER GROUP 'g' ON ${news.name} TO EARLIEST`)
    await aborted
    assert.equal(context.signal.reason.code, "LEASE_LOST")
  })
  assert.equal(attempts.length, 2)
})

test("abort: handlers are notified, their messages returned, and the run rejects with the reason", { timeout }, async () => {
  const news = await topic()
  await news.publishMany(range(0, 3).map((payload) => ({ payload })))
  const controller = new AbortController()
  const reason = new Error("enough")
  const consumer = client.consumer({ topic: news.name, groupId: "g", stopTimeoutMs: 200, concurrency: 2, onError: quiet })
  const stubborn = deferred()
  const running = consumer.run(
    async (context) => {
      if (context.json() === 0) return stubborn.promise // takes no notice of the abort
      setTimeout(() => controller.abort(reason))
      await new Promise((_, reject) => context.signal.addEventListener("abort", () => reject(context.signal.reason)))
    },
    { signal: controller.signal },
  )
  await assert.rejects(running, (error) => error === reason)
  stubborn.resolve()
  const { lag, in_flight, pending } = await groupOf(client, news.name, "g")
  assert.deepEqual({ lag, in_flight, pending }, { lag: 3, in_flight: 0, pending: 3 })
  const late = client.consumer({ topic: news.name, groupId: "g" })
  await assert.rejects(late.run(quiet, { signal: controller.signal }), (error) => error === reason)
})

test("messages of a response that is lost, or on its way at the stop, are returned", { timeout }, async () => {
  const options = { groupId: "g", visibilityMs: 240_000, onError: quiet } // nobody waits for the lease to expire
  const lost = await topic()
  await lost.publish("lost")
  const losing = async (target, init) => {
    const response = await fetch(target, init)
    if (!target.endsWith("/consume")) return response
    await response.arrayBuffer()
    loser.stop()
    throw new TypeError("fetch failed")
  }
  const loser = connect({ fetch: losing }).consumer({ topic: lost.name, ...options })
  await loser.run(() => assert.fail("its response was lost"))
  const { in_flight, pending } = await groupOf(client, lost.name, "g")
  assert.deepEqual({ in_flight, pending }, { in_flight: 0, pending: 1 })

  const late = await topic()
  const stopping = client.consumer({ topic: late.name, ...options })
  const running = stopping.run(quiet)
  await until(async () => (await late.describe()).groups.length === 1)
  await Promise.all([late.publish("on its way"), stopping.stop()])
  await running
  await until(async () => (await groupOf(client, late.name, "g")).in_flight === 0) // or the server finds that it has left
})

test("a process that is killed in its work: another one gets its messages when the lease expires", { timeout }, async () => {
  const news = await topic()
  await news.publishMany([{ payload: "done" }, { payload: "in work" }, { payload: "fetched" }])
  const program = fileURLToPath(new URL("crash.mjs", import.meta.url))
  const child = spawn(process.execPath, [program, url, news.name], { stdio: ["ignore", "pipe", "inherit"] })
  let output = ""
  child.stdout.on("data", (data) => (output += data))
  await until(() => output.includes("in work"))
  await until(async () => (await groupOf(client, news.name, "g")).lag === 2) // the first is acknowledged
  const ended = new Promise((resolve) => child.on("exit", resolve))
  child.kill("SIGKILL")
  await ended
  const consumer = client.consumer({ topic: news.name, groupId: "g", onError: quiet })
  const seen = []
  await consumer.run(async ({ message }) => {
    assert.ok(message.attempt > 1)
    seen.push(message.text())
    if (seen.length === 2) consumer.stop()
  })
  assert.deepEqual(seen, ["in work", "fetched"])
})

test("consumers: dead letters have an origin; misuse and unknown topics are errors", { timeout }, async () => {
  const dead = await topic()
  const news = await topic(1, `WITH (max_attempts = 1, dead_letter = ${dead.name})`)
  await news.publish("poison")
  const failing = client.consumer({ topic: news.name, groupId: "g", retryMs: 1, timeoutMs: 200, onError: quiet })
  const running = failing.run(() => Promise.reject(new Error("never")))
  const undertaker = client.consumer({ topic: dead.name, groupId: "u", onError: quiet })
  await undertaker.run(async ({ message }) => {
    assert.deepEqual(message.origin, { topic: news.name, partition: 0, offset: 0, group: "g", attempts: 1 })
    undertaker.stop()
  })
  failing.stop()
  await running
  await rejects(client.consumer({ topic: "no.such", groupId: "g" }).run(quiet), { status: 404, code: "TOPIC_NOT_FOUND" })
  const valid = { topic: "t", groupId: "g" }
  for (const wrong of [{ concurrency: 0 }, { visibilityMs: 0 }, { partitions: [] }, { groupId: "" }]) {
    assert.throws(() => client.consumer({ ...valid, ...wrong }), TypeError)
  }
  await assert.rejects(client.consumer(valid).run("no function"), TypeError)
})

test("where a group starts: latest, an offset, a time", { timeout }, async () => {
  const news = await topic()
  await news.publishMany(range(0, 3).map((payload) => ({ payload })))
  const start = async (groupId, from, expected) => {
    const consumer = client.consumer({ topic: news.name, groupId, start: from, timeoutMs: 100, onError: quiet })
    const seen = []
    await consumer.run(async (context) => {
      seen.push(context.json())
      if (seen.length === expected.length) consumer.stop()
    })
    assert.deepEqual(seen, expected)
  }
  await start("offset", 1, [1, 2])
  await start("time", new Date(0), [0, 1, 2])
  const latest = client.consumer({ topic: news.name, groupId: "latest", start: "latest", onError: quiet })
  const seen = []
  const running = latest.run((context) => (seen.push(context.json()), latest.stop()))
  await until(async () => (await news.describe()).groups.some((each) => each.group_id === "latest"))
  await news.publish(3)
  await running
  assert.deepEqual(seen, [3])
})

test("a transaction over a table, a topic and a stream", { timeout }, async () => {
  const done = await topic()
  const table = fresh("accounts").replaceAll("/", "-")
  await client.sql(`CREATE TABLE "${table}" (o TEXT, n BIGINT, PRIMARY KEY (o, n))`)
  const audit = client.stream(fresh("audit"), { contentType: "text/plain" })
  await audit.create()
  const result = await client.transaction(async (tx) => {
    assert.equal(await tx.get(table, ["x", 1]), undefined)
    for (const n of range(0, 5)) tx.put(table, { o: "x", n, raw: new Uint8Array([n]) })
    tx.update(table, { o: "x", n: 1 }, "SET v = :v", { values: { ":v": "new" } })
    tx.delete(table, ["x", 2])
    assert.deepEqual(await tx.get(table, ["x", 1]), { o: "x", n: 1, raw: new Uint8Array([1]), v: "new" })
    assert.deepEqual((await tx.query(table, "x", { descending: true, limit: 3 })).map((item) => item.n), [4, 3, 1])
    const sort = { op: "BETWEEN", operands: [1, 3] }
    assert.deepEqual((await tx.query(table, "x", { sort })).map((item) => item.n), [1, 3])
    tx.publish(done.name, { n: 1 }, { key: "k" })
    tx.append(await tx.tail(audit.path) && audit.path, "moved")
    return "result"
  })
  assert.equal(result, "result")
  assert.equal((await audit.read()).text, "moved")
  assert.equal((await client.table(table).get({ o: "x", n: 1 })).v, "new")
  assert.equal((await done.read()).messages.length, 1)
})

test("a transaction that conflicts runs again; one that fails writes nothing", { timeout }, async () => {
  const table = fresh("counters").replaceAll("/", "-")
  await client.sql(`CREATE TABLE "${table}" (id TEXT PRIMARY KEY)`)
  let calls = 0
  const add = async (tx) => {
    calls++
    const found = (await tx.get(table, "a")) ?? { id: "a", n: 0 }
    tx.put(table, { ...found, n: found.n + 1 })
  }
  await Promise.all(range(0, 6).map(() => client.transaction(add, { attempts: 100 })))
  assert.equal((await client.table(table).get({ id: "a" })).n, 6)
  assert.ok(calls > 6)
  const [first, second] = [client.begin(), client.begin()]
  for (const tx of [first, second]) await add(tx)
  assert.equal((await first.commit()).replayed, false)
  await rejects(second.commit(), { status: 409, code: "TRANSACTION_CONFLICT" })
  await rejects(second.commit(), { code: "TRANSACTION_ENDED" })
  const failing = client.transaction((tx) => {
    tx.put(table, { id: "b" })
    tx.check(table, "c", "attribute_exists(id)")
  })
  await rejects(failing, { status: 409, code: "CONDITION_FAILED" })
  await assert.rejects(client.transaction(() => Promise.reject(new Error("no"))), /no/)
  await client.transaction((tx) => (tx.put(table, { id: "b" }), tx.rollback()))
  assert.equal(await client.table(table).get({ id: "b" }), undefined)
})

test("a transaction acknowledges messages, if they are still held", { timeout }, async () => {
  const news = await topic()
  await news.publishMany([{ payload: 1 }, { payload: 2 }])
  const body = { topic: news.name, group_id: "g", consumer_id: "w", timeout_seconds: 0 }
  const got = await client.request("POST", "/v1/api/topics/consume", { json: body })
  const held = { offsets: [0, 1], consumer: "w", lease: got.lease_id }
  await rejects(client.transaction((tx) => tx.ack(news.name, "g", { ...held, consumer: "other" })), { code: "LEASE_LOST" })
  const tx = client.begin()
  tx.ack(news.name, "g", held)
  assert.equal((await tx.commit()).acknowledged, 2)
})
