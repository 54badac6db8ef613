// A program in TypeScript against the declarations of clients/js: it must compile, except where it says otherwise.
import { Client, Decimal, TailraceError, type Change, type Session } from "tailrace"

const client = new Client("http://127.0.0.1:4437", { token: () => "token", onSession: (session?: Session) => session?.user.name })

export async function main(signal: AbortSignal): Promise<number> {
  const stream = client.stream("a", { contentType: "text/plain" })
  for await (const page of stream.follow({ offset: "now", live: "sse", signal })) {
    const text: string = page.text
    if (text && page.closed) break
  }
  const offsets: Array<{ offset: string; duplicate: boolean }> = [await stream.producer({ id: "p" }).append("x")]
  for await (const change of client.table("t").follow({ filter: (each: Change) => each.event === "INSERT" })) {
    const name: string = change.keys.id
    if (name) break
  }
  await client.table("t").put({ n: new Decimal("1.5") }, { condition: "n = :n", values: { ":n": 1n } })
  const published = await client.topic("t").producer().append({ payload: { a: 1 }, key: "k" })
  const consumer = client.consumer({ topic: "t", groupId: "g", concurrency: 2, start: new Date() })
  await consumer.run(async (context) => {
    const attempt: number = context.message.attempt
    if (attempt > 1) await context.nack({ delayMs: 10 })
    else await context.extend()
  })
  const [result] = await client.sql("SELECT ?", [1], { signal })
  try {
    await client.me()
  } catch (error) {
    if (error instanceof TailraceError) return error.status + error.code.length
  }
  // @ts-expect-error a group is needed
  client.consumer({ topic: "t" })
  // @ts-expect-error no such event
  client.table("t").follow({ filter: (change) => change.event === "UPSERT" })
  // @ts-expect-error a payload is needed
  client.topic("t").producer().append({ key: "k" })
  return (result?.rowCount ?? 0) + (published?.offset ?? 0) + offsets.length
}
