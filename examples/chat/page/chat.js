// The page: it puts messages into a table, follows the changes of the table, and shows which way a message went.
import { Client } from "/tailrace.js"

const $ = (id) => document.getElementById(id)
const settings = await (await fetch("/settings.json")).json()
const client = new Client(settings.url)
const room = client.table("chat.room")
const shown = new Map() // by id: the element of each message

$("name").value = new URLSearchParams(location.search).get("name") ?? localStorage.getItem("chat-name") ?? "guest"
$("name").addEventListener("change", () => localStorage.setItem("chat-name", $("name").value))

// -- what is said

/** Show an item, or what it has become. */
function show({ id, author, body, done }, sequence) {
  $("empty")?.remove()
  let item = shown.get(id)
  if (item === undefined) {
    item = document.createElement("li")
    const [name, text] = [document.createElement("b"), document.createElement("p")]
    name.textContent = author
    item.append(name, text)
    shown.set(id, item)
    place(item, id)
    if (author !== "assistant") item.append(way(id, sequence))
  }
  item.className = author === "assistant" ? "assistant" : author === $("name").value ? "mine" : ""
  item.classList.toggle("writing", done === false)
  const near = $("messages").scrollHeight - $("messages").scrollTop - $("messages").clientHeight < 120
  item.children[1].textContent = body
  if (near) $("messages").scrollTop = $("messages").scrollHeight
}

/** A reply stands below its question, whatever was said in between. */
function place(item, id) {
  const question = id.startsWith("re:") ? shown.get(id.slice(3)) : undefined
  if (question) question.after(item)
  else $("messages").append(item)
}

// -- the way of a message

/** A line that shows the way of a row: its transaction, its message, and what the assistant has done with it. */
function way(id, sequence) {
  const line = document.createElement("button")
  line.className = "path"
  line.title = "Follow this message from its row to its reply"
  line.textContent = `row ${sequence}`
  const look = async () => {
    const { messages } = await room.trace(sequence, { key: { id } })
    const steps = messages.map(({ topic, partition_id, offset, groups }) => {
      const states = groups.map(({ group_id, state }) => `${group_id}: ${state.replace("_", " ")}`)
      return `${topic} ${partition_id}:${offset} → ${states.join(", ") || "nobody yet"}`
    })
    line.textContent = [`row ${sequence}`, ...(steps.length > 0 ? steps : ["no question, no route"])].join(" → ")
    return messages.flatMap(({ groups }) => groups).some(({ state }) => state !== "acknowledged")
  }
  line.addEventListener("click", look)
  const watch = async () => {
    for (let tries = 0; tries < 40 && (await look().catch(() => false)); tries++) await new Promise((resolve) => setTimeout(resolve, 500))
  }
  setTimeout(watch, 300)
  return line
}

// -- sending and following

document.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault()
  const body = $("body").value.trim()
  if (!body) return
  $("body").value = ""
  const author = $("name").value.trim() || "guest"
  await room.put({ id: `${Date.now()}-${crypto.randomUUID().slice(0, 8)}`, author, body, at: new Date().toISOString(), done: true })
})

setInterval(async () => {
  const lost = await client.request("GET", "/healthz", { retryForMs: 0, timeoutMs: 3_000 }).then(() => false, () => true)
  $("state").textContent = lost ? "no connection; it goes on when the server is back" : "live"
  $("state").dataset.state = lost ? "lost" : "live"
}, 2_000)

$("state").textContent = "live"
$("body").focus()
window.chat = { client, room, shown } // for tests, and for the curious
for await (const change of room.follow()) {
  if (change.new) show(change.new, change.sequence)
  else shown.get(change.keys.id)?.remove()
}
