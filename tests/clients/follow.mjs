// Follows the stream at `node follow.mjs <url> <live mode>` with the official client and prints each message as a
// line, until the stream is closed. Says "ready" once an append was refused, which it tries first, and "closed" last.
import { DurableStream, stream } from "@durable-streams/client"

const [url, live] = process.argv.slice(2)
const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`)

const refused = await new DurableStream({ url, contentType: "application/json" })
  .append('{"n":1}')
  .then(() => "taken", (error) => error.status)
say(["ready", refused])
const response = await stream({ url, offset: "-1", live })
try {
  await new Promise((resolve, reject) => {
    response.closed.then(resolve, reject)
    response.subscribeJson(async (batch) => {
      for (const item of batch.items) say(["record", item])
      if (batch.streamClosed) resolve()
    })
  })
} finally {
  response.cancel()
}
say(["closed"])
