// What the tests of clients/js share: the server that Python runs for them, fetches that lose responses, and waits.
import assert from "node:assert/strict"
import { randomUUID } from "node:crypto"
import { Client } from "../../../clients/js/tailrace.js"

export const url = process.env.TAILRACE_URL
export const token = process.env.TAILRACE_TEST_TOKEN
assert.ok(url, "TAILRACE_URL is not set: give the base URL of a running server")

export const timeout = 120_000 // only a failing test takes so long
export const fresh = (name) => `js.${name}.${randomUUID().slice(0, 8)}`
export const connect = (options = {}) => new Client(url, token ? { token, ...options } : options)

/** Ask Python to do something with the server: kill it, or start it again on its port. */
export async function control(what) {
  const response = await fetch(`${process.env.CONTROL_URL}/${what}`, { method: "POST" })
  assert.equal(response.status, 200, await response.text())
}

/** A fetch that counts requests, and does to the n-th one (from 0) whose method and path match what `plan(n)` says. */
export function faulty(match, plan) {
  const made = async (target, init) => {
    const key = `${init.method} ${new URL(target).pathname}`
    if (!match.test(key)) return fetch(target, init)
    const step = plan(made.count++)
    if (step === "refuse") throw refused()
    if (typeof step === "object") return new Response(JSON.stringify(step.body ?? {}), step)
    const response = await fetch(target, init)
    if (step !== "lose") return response
    await response.arrayBuffer()
    throw new TypeError("fetch failed", { cause: Object.assign(new Error("other side closed"), { code: "UND_ERR_SOCKET" }) })
  }
  made.count = 0
  return made
}

export const refused = () => new TypeError("fetch failed", { cause: Object.assign(new Error("refused"), { code: "ECONNREFUSED" }) })

export const unavailable = { status: 503, headers: { "retry-after": "0" }, body: { error: { code: "UNAVAILABLE", message: "later" } } }

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/** Wait until `probe` returns something. */
export async function until(probe) {
  for (;;) {
    const found = await probe()
    if (found) return found
    await pause(20)
  }
}

/** A promise with its ends. */
export function deferred() {
  const ends = {}
  ends.promise = new Promise((resolve, reject) => Object.assign(ends, { resolve, reject }))
  return ends
}

export const rejects = (promise, expected) =>
  assert.rejects(promise, (error) => {
    assert.equal(error.name, "TailraceError", error.stack)
    const found = Object.fromEntries(Object.keys(expected).map((name) => [name, error[name]]))
    assert.deepEqual(found, expected)
    return true
  })

export const range = (from, to) => Array.from({ length: to - from }, (_, at) => from + at)

/** The group's state, over all partitions. */
export async function groupOf(client, topic, group) {
  const { groups } = await client.topic(topic).describe()
  const sum = { lag: 0, in_flight: 0, pending: 0, delivered: 0, redelivered: 0 }
  for (const each of groups) if (each.group_id === group) for (const name in sum) sum[name] += each[name]
  return sum
}
