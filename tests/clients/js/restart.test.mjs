// clients/js: the server at TAILRACE_URL is killed and started again while programs read, write and consume.
import assert from "node:assert/strict"
import { test } from "node:test"
import { connect, control, fresh, groupOf, range, timeout, until } from "./support.mjs"

const RESTARTS = 2
const EACH = 30 // messages between two kills
const LAST = EACH * (RESTARTS + 1)
const ALL = range(0, LAST)
const client = connect({ retryForMs: timeout })

test("readers, producers and consumers continue: nothing is lost, nothing doubled", { timeout }, async () => {
  const stream = client.stream(fresh("json"))
  const words = client.stream(fresh("text"), { contentType: "text/plain" })
  await Promise.all([stream.create(), words.create()])
  const name = fresh("t").replaceAll(".", "_")
  await client.sql(`CREATE TABLE ${name} (id TEXT PRIMARY KEY, n BIGINT) WITH (stream = 'NEW_AND_OLD_IMAGES')`)
  await client.sql(`CREATE TOPIC js.${name} PARTITIONS 2`)
  const table = client.table(name)
  const topic = client.topic(`js.${name}`)
  const producers = { stream: stream.producer(), words: words.producer(), topic: topic.producer() }

  const found = { sse: [], poll: [], text: "", changes: [], messages: [] }
  const pages = async (live, into) => {
    for await (const page of stream.follow({ live })) {
      into.push(...page.messages)
      if (into.at(-1) === LAST - 1) return
    }
  }
  const readers = [
    pages("sse", found.sse),
    pages("long-poll", found.poll),
    (async () => {
      for await (const page of words.follow()) {
        found.text += page.text
        if (found.text.endsWith(`\n${LAST - 1}\r\n`)) return
      }
    })(),
    (async () => {
      for await (const change of table.follow()) {
        found.changes.push(change.new.n)
        if (change.new.n === LAST - 1) return
      }
    })(),
    (async () => {
      for await (const message of topic.follow({ partition: 1 })) {
        found.messages.push(message.json())
        if (message.json() === LAST - 1) return
      }
    })(),
  ]

  const options = { topic: topic.name, groupId: "g", concurrency: 3, batch: 5, visibilityMs: 1_000, timeoutMs: 500 }
  const consumer = client.consumer({ ...options, onError: () => undefined })
  const consumed = new Set()
  const running = consumer.run(async (context) => void consumed.add(context.json()))

  const write = (n) =>
    Promise.all([
      producers.stream.append(n),
      producers.words.append(`${n}\r\n`),
      table.put({ id: `k${n % 7}`, n }),
      producers.topic.append({ payload: n, partition: n % 2 }),
    ])
  for (const n of ALL) {
    if (n > 0 && n % EACH === 0) {
      const some = n - EACH / 2 // of what was written: readers are in the middle of it
      await until(() => Math.min(found.sse.length, found.poll.length, found.changes.length, consumed.size) >= some)
      const writing = write(n)
      await control("kill") // while requests are under way
      await control("start")
      await writing
    } else await write(n)
  }
  await Promise.all(readers)
  const text = ALL.map((n) => `${n}\r\n`).join("")
  const odd = ALL.filter((n) => n % 2 === 1)
  assert.deepEqual(found, { sse: ALL, poll: ALL, text, changes: ALL, messages: odd })
  assert.deepEqual((await stream.read()).messages, ALL)

  await until(async () => consumed.size === LAST && (await groupOf(client, topic.name, "g")).lag === 0)
  consumer.stop()
  await running
  assert.deepEqual([...consumed].sort((a, b) => a - b), ALL)
})
