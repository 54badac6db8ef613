// `node crash.mjs <url> <topic>`: consumes as a worker that is killed in the middle of its second message.
import { Client } from "../../../clients/js/tailrace.js"

const [url, topic] = process.argv.slice(2)
await new Client(url).consumer({ topic, groupId: "g", visibilityMs: 2_000, ackEveryMs: 1 }).run(async ({ message }) => {
  process.stdout.write(`${message.text()}\n`)
  if (message.text() !== "done") await new Promise(() => undefined)
})
