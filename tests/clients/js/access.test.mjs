// clients/js: credentials, against a server at TAILRACE_URL whose access tokens live for five seconds.
import assert from "node:assert/strict"
import { before, test } from "node:test"
import { Client } from "../../../clients/js/tailrace.js"
import { connect, faulty, fresh, range, rejects, timeout, until, url } from "./support.mjs"

const admin = connect()
const password = "four words make one"

before(async () => {
  await admin.request("POST", "/v1/admin/users", { json: { name: "ann", password, role: "dba" } })
  await admin.sql("CREATE TABLE things (id TEXT PRIMARY KEY)")
})

/** A client with a login of its own, that counts logins and refreshes. */
async function loggedIn(options = {}) {
  const fetch = faulty(/auth\/(login|refresh)$/, options.plan ?? (() => undefined))
  const client = new Client(url, { fetch, ...options })
  return { client, fetch, session: await client.login("ann", password) }
}

test("the server's token, a wrong one, and none", { timeout }, async () => {
  assert.equal((await admin.me()).name, "token")
  await admin.table("things").put({ id: "by token" })
  const wrong = new Client(url, { token: "wrong-wrong-wrong-wrong" })
  await rejects(wrong.me(), { status: 401, code: "WRONG_TOKEN" })
  await rejects(wrong.table("things").get({ id: "a" }), { status: 400, code: "UnrecognizedClientException" })
  await rejects(wrong.stream("s").follow().next(), { status: 401, code: "WRONG_TOKEN" })
  await rejects(new Client(url).me(), { status: 401, code: "UNAUTHENTICATED" })
  await assert.rejects(admin.login("ann", password), TypeError)
})

test("a token from a function is asked for again after a 401", { timeout }, async () => {
  const { session } = await loggedIn()
  const tokens = ["not-a-token-at-all", session.accessToken]
  const client = new Client(url, { token: async () => (tokens.length > 1 ? tokens.shift() : tokens[0]) })
  assert.equal((await client.me()).name, "ann")
})

test("login, every API with its token, logout", { timeout }, async () => {
  const seen = []
  const { client, session } = await loggedIn({ onSession: (each) => seen.push(each) })
  assert.deepEqual(session.user, { name: "ann", role: "dba" })
  assert.equal((await client.me()).name, "ann")
  await client.table("things").put({ id: "by ann" })
  assert.deepEqual(await client.table("things").get({ id: "by ann" }), { id: "by ann" })
  await client.stream(fresh("s")).create()
  await client.sql("CREATE TOPIC IF NOT EXISTS js.access")
  await client.topic("js.access").publish("x")
  await client.logout()
  assert.equal(client.session, undefined)
  assert.deepEqual([seen[0], seen.at(-1)], [session, undefined])
  await rejects(client.me(), { status: 401, code: "UNAUTHENTICATED" })
  await rejects(new Client(url, { session }).me(), { status: 401 }) // the session is over
  await rejects(new Client(url).login("ann", "wrong"), { status: 401, code: "WRONG_PASSWORD" })
})

test("a session is renewed before it expires, once for all requests", { timeout }, async () => {
  const { session } = await loggedIn()
  const client = new Client(url, { session: { ...session, expiresAt: Date.now() } })
  // A refresh token that is sent twice ends the session.
  await Promise.all(range(0, 20).map(() => client.me()))
  assert.notEqual(client.session.accessToken, session.accessToken)
  assert.equal((await client.me()).name, "ann")
})

test("a session is renewed after a 401, once, and the request is repeated", { timeout }, async () => {
  for (const use of [
    (client) => client.me(),
    (client) => client.table("things").get({ id: "a" }), // has another form of error
    (client) => client.stream("none").head().catch((error) => assert.equal(error.status, 404)),
  ]) {
    const { session } = await loggedIn()
    const renewed = []
    const lasting = { ...session, lifetimeMs: 3_600_000, expiresAt: Date.now() + 3_600_000 }
    const client = new Client(url, { session: { ...lasting, accessToken: "no-such-token" }, onSession: (each) => renewed.push(each) })
    await use(client)
    assert.equal(renewed.length, 1)
  }
  // A server that refuses every token is not asked for ever.
  const { session } = await loggedIn()
  const fetch = faulty(/auth\/me$/, () => ({ status: 401 }))
  await rejects(new Client(url, { fetch, session }).me(), { status: 401 })
  assert.equal(fetch.count, 2)
})

test("user and password: logs in with the first request, and again when the session has ended", { timeout }, async () => {
  const fetch = faulty(/login$/, (n) => (n === 0 ? "lose" : undefined)) // may be repeated
  const client = new Client(url, { user: "ann", password, fetch })
  await Promise.all(range(0, 5).map(() => client.me()))
  const { session } = client
  await new Client(url, { session }).logout()
  assert.equal((await client.me()).name, "ann")
  assert.notEqual(client.session.refreshToken, session.refreshToken)
  await client.logout()
  await rejects(client.me(), { status: 401 }) // the password is forgotten
})

test("a session that has ended, without a password, is an error", { timeout }, async () => {
  const { client, session } = await loggedIn()
  await new Client(url, { session }).logout()
  await rejects(client.me(), { status: 401 })
  assert.equal(client.session, undefined)
})

test("followers and consumers go on while tokens expire", { timeout }, async () => {
  const renewals = []
  const { client } = await loggedIn({ onSession: (session) => session && renewals.push(session) })
  const stream = admin.stream(fresh("long"))
  await stream.create()
  await admin.sql("CREATE TOPIC js.long")
  const consumed = []
  const consumer = client.consumer({ topic: "js.long", groupId: "g", onError: () => undefined })
  const running = consumer.run(async (context) => void consumed.push(context.json()))
  const followed = []
  const following = (async () => {
    for await (const page of client.stream(stream.path).follow()) {
      followed.push(...page.messages)
      if (followed.includes("end")) return
    }
  })()
  let n = 0
  while (renewals.length < 2 || Date.now() < renewals[0].expiresAt + 500) {
    await stream.append(n)
    await admin.topic("js.long").publish(n)
    await until(() => followed.includes(n) && consumed.includes(n))
    n++
  }
  await stream.append("end")
  await following
  consumer.stop()
  await running
  assert.deepEqual(followed, [...range(0, n), "end"])
  assert.deepEqual([...new Set(consumed)], range(0, n))
})
