// clients/js: what a server cannot be made to do at will; each test has a fetch of its own.
import assert from "node:assert/strict"
import { test } from "node:test"
import { Client, Decimal, fromAttribute, toAttribute } from "../../../clients/js/tailrace.js"

const answer = (body, init) => new Response(body === null ? null : JSON.stringify(body), init)
const json = { headers: { "content-type": "application/json" } }
const made = (token, name = "u") => answer({ access_token: token, refresh_token: `r-${token}`, expires_in: 3600, user: { name } })
const session = (accessToken, expiresAt, name = "u") => ({ accessToken, refreshToken: "r", expiresAt, lifetimeMs: 1e7, user: { name, role: "dba" } })
const refused = () => answer({ error: { code: "UNAUTHENTICATED", message: "no" } }, { status: 401 })
const broken = () => new TypeError("fetch failed", { cause: { code: "ECONNRESET" } })
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

test("handlers that end in the same moment leave no more slots than there are", async () => {
  const given = new Set()
  const fetch = async (target, { body, signal }) => {
    const { pathname } = new URL(target)
    if (pathname.startsWith("/v1/topics/")) return answer({ groups: [] })
    if (!pathname.endsWith("/consume")) return answer({})
    const { partition_id } = JSON.parse(body)
    if (given.has(partition_id)) await new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)))
    given.add(partition_id)
    const messages = Array.from({ length: 50 }, (_, offset) => ({ partition_id, offset, ts: 0, payload: "", attempt: 1 }))
    return answer({ partition_id, lease_id: String(partition_id), skipped: 0, messages })
  }
  const consumer = new Client("http://h", { fetch }).consumer({ topic: "t", groupId: "g", partitions: [0, 1], concurrency: 2 })
  let [running, most, count] = [0, 0, 0]
  let wake
  let turn = new Promise((resolve) => (wake = resolve))
  const timer = setInterval(() => {
    wake()
    turn = new Promise((resolve) => (wake = resolve))
  }, 2)
  await consumer.run(async () => {
    most = Math.max(most, ++running)
    await turn
    running--
    if (++count === 100) consumer.stop()
  })
  clearInterval(timer)
  assert.deepEqual([most, count], [2, 100])
})

test("a name of dots does not lead to another target", () => {
  const client = new Client("http://h", { fetch: () => assert.fail("sent") })
  for (const path of ["..", "a/../../topics/b", "./a"]) assert.throws(() => client.stream(path), TypeError)
  for (const name of ["..", "."]) {
    assert.throws(() => client.table(name), TypeError)
    assert.throws(() => client.topic(name), TypeError)
  }
})

test("an abort before the login leaves no rejection unhandled", async () => {
  const unhandled = []
  const listener = (error) => unhandled.push(error)
  process.on("unhandledRejection", listener)
  const client = new Client("http://h", { fetch: async () => refused(), user: "u", password: "p" })
  await assert.rejects(client.me({ signal: AbortSignal.abort(new Error("aborted")) }), /aborted/)
  await pause(20)
  process.off("unhandledRejection", listener)
  assert.deepEqual(unhandled, [])
})

test("a refresh that ends after a logout, or a login, does not undo it", async () => {
  for (const next of ["logout", "login"]) {
    let release
    const ended = []
    const fetch = async (target, { body }) => {
      if (target.endsWith("/refresh")) {
        await new Promise((resolve) => (release = resolve))
        return made("A2", "A")
      }
      if (target.endsWith("/login")) return made("B1", "B")
      if (target.endsWith("/logout")) ended.push(JSON.parse(body).refresh_token)
      return answer({}, json)
    }
    const client = new Client("http://h", { fetch, session: session("A1", Date.now() - 1, "A") })
    const request = client.me()
    await pause(5)
    await (next === "login" ? client.login("B", "p") : client.logout())
    release()
    await request
    assert.equal(client.session?.user.name, next === "login" ? "B" : undefined)
    assert.equal(ended.at(-1), "r-A2") // nobody has it
  }
})

test("a request that is refused while another one logs in again waits for it", async () => {
  let slow = 0
  const fetch = async (target, { headers }) => {
    if (target.endsWith("/refresh")) return refused()
    if (target.endsWith("/login")) return pause(100).then(() => made("new"))
    if (headers.get("authorization") === "Bearer new") return answer({}, json)
    await pause(slow++ * 40)
    return refused()
  }
  const client = new Client("http://h", { fetch, user: "u", password: "p", session: session("old", Date.now() + 1e7) })
  await Promise.all([client.me(), client.me()])
})

test("a producer: the number of a request whose outcome is unknown is never given to other messages", async () => {
  const stored = []
  const last = new Map()
  let step = 0
  const fetch = async (_, { headers, body }) => {
    const [epoch, sequence] = [headers.get("producer-epoch"), Number(headers.get("producer-seq"))]
    step++
    if (step === 2) return refused()
    const known = sequence <= (last.get(epoch) ?? -1)
    if (!known) stored.push(new TextDecoder().decode(body))
    last.set(epoch, Math.max(sequence, last.get(epoch) ?? -1))
    if (step === 1 || step === 3) throw broken()
    return answer(null, { status: known ? 204 : 200 })
  }
  const producer = new Client("http://h", { fetch }).stream("s").producer()
  await assert.rejects(producer.append("A"))
  await producer.append("B")
  assert.deepEqual(stored, ['["A"]', '["B"]'])
})

test("a producer that was fenced while it was cut off stays so", async () => {
  let [current, last, cut] = [-1, -1, false]
  const fetch = async (_, { headers, body }) => {
    if (cut && new TextDecoder().decode(body).includes("A")) throw broken()
    const [epoch, sequence] = [Number(headers.get("producer-epoch")), Number(headers.get("producer-seq"))]
    const known = { "producer-epoch": String(current) }
    if (epoch < current) return answer({ error: { code: "STALE_EPOCH", message: "" } }, { status: 403, headers: known })
    if (epoch > current) [current, last] = [epoch, -1]
    if (sequence <= last) return answer(null, { status: 204 })
    last = sequence
    return answer(null, { status: 200 })
  }
  const stream = new Client("http://h", { fetch }).stream("s")
  const earlier = stream.producer({ id: "p", retryForMs: 150 })
  await earlier.append("A1")
  cut = true
  const lost = assert.rejects(earlier.append("A2"))
  await pause(20)
  const later = stream.producer({ id: "p" })
  await later.append("B1")
  await lost
  cut = false
  await assert.rejects(earlier.append("A3"), { code: "STALE_EPOCH" })
  await later.append("B2")
})

test("errors of the program are not those of a connection", async () => {
  const client = new Client("http://h", { fetch: async () => answer({}, json) })
  await assert.rejects(client.call("X", { n: 1n }, { repeatable: true }), TypeError)
  let asked = 0
  const headers = { "content-type": "application/json", "stream-next-offset": "1", "stream-up-to-date": "true" }
  const token = () => {
    if (asked++ > 0) throw new RangeError("signed out")
    return "t"
  }
  const follower = new Client("http://h", { fetch: async () => answer([], { headers }), token }).stream("s").follow()
  await assert.rejects(follower.next(), RangeError)
})

test("text keeps its byte order mark, and numbers are numbers again", async () => {
  const headers = { "content-type": "text/plain", "stream-next-offset": "1" }
  const fetch = async () => new Response(Uint8Array.of(0xef, 0xbb, 0xbf, 0x61), { headers })
  assert.equal((await new Client("http://h", { fetch }).stream("s").read()).text, "\ufeffa")
  for (const number of [0.1 + 0.2, 1 / 3, Number.MAX_SAFE_INTEGER, -0.5]) assert.equal(fromAttribute(toAttribute(number)), number)
  assert.ok(fromAttribute({ N: "9007199254740993" }) instanceof Decimal)
  assert.ok(fromAttribute({ N: "0.3000000000000000444" }) instanceof Decimal)
})

test("statements are not run again because a later one was refused for now", async () => {
  for (const [status, code, results] of [
    [429, "TOO_MANY", [{ statement: "UPDATE" }]], // SELECT statements are already running
    [503, "QUEUE_FULL", [{ statement: "UPDATE" }]],
    [429, "SELECT_RESULTS_BUSY", undefined], // all have run
  ]) {
    let runs = 0
    const fetch = async () => (runs++ > 0 ? answer({ results: [] }, json) : answer({ error: { code, message: "" }, results }, { status }))
    const client = new Client("http://h", { fetch })
    await assert.rejects(client.sql("UPDATE t SET n = n + 1 WHERE id = 'a'; SELECT 1"), { code })
    assert.equal(runs, 1)
  }
  let runs = 0
  const fetch = async () => (runs++ > 0 ? answer({ results: [] }, json) : answer({ error: { code: "QUEUE_FULL", message: "" }, results: [] }, { status: 503 }))
  await new Client("http://h", { fetch }).sql("UPDATE t SET n = n + 1 WHERE id = 'a'") // nothing was done
  assert.equal(runs, 2)
})
