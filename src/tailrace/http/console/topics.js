/** Topics: the list, and one of them with its routes as a picture, messages, groups and dead letters. */

import { Tail, whole } from "./tail.js"
import { act, ago, badge, button, bytes, card, clock, code, confirm, counted, dialog, dim, facts, field, form, grid, h, href, link, number, poll, s, seconds, select, show, state, tabs, time, toast } from "./ui.js"

const quoted = (text) => `'${text.replaceAll("'", "''")}'`
const named = (topic) => topic.split(".").map((part) => `"${part.replaceAll('"', '""')}"`).join(".")

export default async function topics(app) {
  return app.parts.length ? one(app, app.parts[0]) : list(app)
}

async function list(app) {
  const all = await app.client.topics({ signal: app.signal })
  const search = h("input", { type: "search", placeholder: "Search topics", "aria-label": "Search topics", value: app.query.search ?? "" })
  const found = h("div")
  const draw = () => {
    const wanted = search.value.trim().toLowerCase()
    const rows = all.filter(({ name }) => name.toLowerCase().includes(wanted))
    found.replaceChildren(grid([
      { name: "Topic", class: "name", value: (row) => [link(["topics", row.name], row.name, {}, { title: row.name }), row.alias && [" ", dim(row.alias)]] },
      { name: "Partitions", class: "num", value: (row) => number(row.partitions) },
      { name: "Keeps", value: (row) => [row.retention_seconds && seconds(row.retention_seconds), row.retention_max_bytes && bytes(row.retention_max_bytes)].filter(Boolean).join(", ") || dim("all") },
      { name: "Attempts", class: "num", value: (row) => row.max_attempts ?? dim("no limit") },
      { name: "Dead letters", value: (row) => (row.dead_letter ? link(["topics", row.dead_letter]) : dim("–")) },
      { name: "Created", value: (row) => time(row.created_at) },
    ], rows, { label: "Topics", onrow: (row) => app.go(["topics", row.name]), empty: wanted ? `No topic has “${wanted}” in its name.` : "There are no topics yet. Create one here, or with CREATE TOPIC." }))
  }
  search.addEventListener("input", draw)
  const create = () => form("New topic", [
    field("Name", h("input", { name: "name", required: true, autofocus: true, placeholder: "app.events" })),
    field("Partitions", h("input", { name: "partitions", value: "1", inputmode: "numeric" })),
  ], "Create", async ({ name, partitions }) => {
    await app.client.sql(`CREATE TOPIC ${named(name)} PARTITIONS ${Number(partitions) || 1}`)
    app.go(["topics", name])
  })
  app.put(h("div", { class: "head" }, h("h1", {}, "Topics"), search, app.can("admin") && button("New topic", create, { class: "primary" })), found)
  draw()
}

async function one(app, name) {
  const info = await app.client.topic(name).describe({ signal: app.signal })
  const tab = app.query.tab ?? "overview"
  const place = h("div", { class: "page" })
  const names = [["overview", "Overview"], app.can("consume") && ["messages", "Messages"], ["groups", "Groups"], info.dead_letter && app.can("consume") && ["dead", "Dead letters"]].filter(Boolean)
  app.put(
    h("div", { class: "head" }, h("h1", {}, info.name), dim(`${counted(info.partition_list.reduce((sum, each) => sum + each.messages, 0), "message")}, ${bytes(info.partition_list.reduce((sum, each) => sum + each.bytes, 0))}`), app.can("write") && button("Publish", () => publish(app, info), { class: "primary" })),
    tabs(["topics", info.name], {}, names, tab, "Parts of the topic"),
    place,
  )
  if (tab === "messages") return messages(app, info, place)
  if (tab === "groups") return groups(app, info, place)
  if (tab === "dead") return messages(app, await app.client.topic(info.dead_letter).describe({ signal: app.signal }), place, info)
  place.append(...about(app, info))
}

// -- overview

function about(app, info) {
  return [
    card("From tables to groups", picture(info)),
    h("div", { class: "two" },
      card("Partitions", grid([
        { name: "Partition", value: (row) => row.partition_id },
        { name: "First offset", class: "num", value: (row) => number(row.start_offset) },
        { name: "Next offset", class: "num", value: (row) => number(row.next_offset) },
        { name: "Messages", class: "num", value: (row) => number(row.messages) },
        { name: "Size", class: "num", value: (row) => bytes(row.bytes) },
      ], info.partition_list, { label: "Partitions" })),
      card("Settings", facts([
        ["Kept for", info.retention_seconds ? seconds(info.retention_seconds) : "no limit"],
        ["At most", info.retention_max_bytes ? bytes(info.retention_max_bytes) : "no limit"],
        ["Attempts", info.max_attempts ?? "no limit"],
        ["Dead letters", info.dead_letter ? link(["topics", info.dead_letter]) : "–"],
        ["Created", time(info.created_at)],
        ["By", info.created_by],
      ]))),
  ]
}

/** Tables and filters on the left, the topic in the middle, its groups on the right. */
function picture(info) {
  const routes = info.routes
  const byGroup = grouped(info.groups)
  const left = routes.length ? routes.map((route) => ({ title: route.name ? `${route.table} (${route.name})` : route.table, small: `${route.op}${route.filter ? ` where ${route.filter}` : ""}`, to: ["tables", route.table] })) : [{ title: "Publishers", small: "no table is a source" }]
  const right = byGroup.length ? byGroup.map((group) => ({ title: group.group_id, small: `lag ${number(group.lag)}, in flight ${number(group.in_flight)}`, to: ["topics", info.name], query: { tab: "groups" } })) : [{ title: "No groups yet", small: "nobody has consumed" }]
  const [box, gap] = [40, 12]
  const rows = Math.max(left.length, right.length, 1)
  const height = rows * (box + gap) + gap
  const y = (at, count) => height / 2 + (at - (count - 1) / 2) * (box + gap)
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text)
  const node = ({ title, small, to, query }, x, middle, width, kind) => {
    const drawn = s("g", { class: kind }, s("title", {}, `${title}: ${small}`), s("rect", { x, y: middle - box / 2, width, height: box, rx: 6 }), s("text", { x: x + 12, y: middle - 2 }, cut(title, width / 7.6)), s("text", { x: x + 12, y: middle + 13, class: "small" }, cut(small, width / 6)))
    return to ? s("a", { href: href(to, query) }, drawn) : drawn
  }
  const edge = (x1, y1, x2, y2) => s("path", { d: `M${x1} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}` })
  const svg = s("svg", { viewBox: `0 0 900 ${height}`, role: "group", "aria-label": `Routes into ${info.name}, and its groups` },
    left.map((each, at) => edge(300, y(at, left.length), 350, height / 2)),
    right.map((each, at) => edge(570, height / 2, 620, y(at, right.length))),
    left.map((each, at) => node(each, 10, y(at, left.length), 290, "")),
    node({ title: info.name, small: counted(info.partitions, "partition") }, 350, height / 2, 220, "focus"),
    right.map((each, at) => node(each, 620, y(at, right.length), 270, "")))
  return h("div", { class: "picture", tabindex: "0", role: "region", "aria-label": "Picture of the routes" }, svg)
}

function grouped(rows) {
  const groups = new Map()
  for (const row of rows) {
    const group = groups.get(row.group_id) ?? { group_id: row.group_id, lag: 0, in_flight: 0, pending: 0, delivered: 0, redelivered: 0, lost: 0, consumers: new Set(), updated_at: "", partitions: [] }
    for (const name of ["lag", "in_flight", "pending", "delivered", "redelivered", "lost"]) group[name] += row[name]
    for (const consumer of row.consumers) group.consumers.add(consumer)
    if (row.updated_at > group.updated_at) group.updated_at = row.updated_at
    if (row.oldest_at && !(row.oldest_at > group.oldest_at)) group.oldest_at = row.oldest_at
    group.partitions.push(row)
    groups.set(row.group_id, group)
  }
  return [...groups.values()].sort((a, b) => b.lag - a.lag)
}

// -- messages

async function messages(app, info, place, origin) {
  const topic = app.client.topic(info.name)
  const partition = select(info.partition_list.map(({ partition_id: id }) => [String(id), `partition ${id}`]), app.query.partition ?? "0", { "aria-label": "Partition" })
  const text = (row) => (row.shown ??= row.text())
  const tail = new Tail({
    label: "Messages",
    columns: "messages",
    signal: app.signal,
    text,
    cells: (row) => [String(row.offset), clock(row.at), row.sourceTable ? `${row.op} ${row.sourceTable}` : row.key ?? row.op, text(row).slice(0, 400)],
    detail: (row) => [
      h("h2", {}, `Offset ${number(row.offset)}`),
      facts([["Time", time(row.at.getTime())], ["By", row.by || "–"], ["From", row.sourceTable ? [row.op, " in ", link(["tables", row.sourceTable])] : "published"], row.key && ["Key", row.key], ["Payload", row.payloadMode], row.origin && ["Failed in", `${row.origin.topic}, group ${row.origin.group}, after ${counted(row.origin.attempts, "attempt")}`]]),
      row.origin && app.can("write") && button("Send again", (event) => again(app, row, event), { class: "small" }),
      whole(text(row)),
    ],
    read: async (offset) => {
      const page = await topic.read({ partition: Number(partition.value), offset, signal: app.signal })
      return { rows: page.messages, offset: page.offset, upToDate: page.upToDate }
    },
    follow: async function* (offset, signal) {
      // A page at a time would be one message per step: gather those that are here already.
      for await (const message of topic.follow({ partition: Number(partition.value), offset, signal })) yield { rows: [message], offset: message.offset + 1 }
    },
  })
  const from = select([["recent", "the latest messages"], ["-1", "the earliest message"], ["now", "now on"], ["offset", "an offset"], ["time", "a time"]], "recent", { "aria-label": "Start at" })
  const exact = h("input", { "aria-label": "Offset", inputmode: "numeric", hidden: true })
  const moment = h("input", { type: "datetime-local", step: "1", "aria-label": "Time", hidden: true })
  const begin = () => act(undefined, async () => {
    exact.hidden = from.value !== "offset"
    moment.hidden = from.value !== "time"
    if (from.value === "offset" && !exact.value) return exact.focus()
    if (from.value === "time" && !moment.value) return moment.focus()
    const here = info.partition_list.find(({ partition_id: id }) => String(id) === partition.value)
    if (from.value === "recent") return tail.start(Math.max(here.start_offset, here.next_offset - 500), true)
    if (from.value === "offset") return tail.start(Number(exact.value), false)
    if (from.value === "time") {
      const query = { topic: info.name, timestamp: new Date(moment.value).getTime() }
      return tail.start(app.client.request("GET", "/v1/logs/at", { query, signal: app.signal }).then(({ offsets }) => offsets[partition.value] ?? 0), false)
    }
    return tail.start(from.value, from.value === "now")
  })
  for (const input of [partition, from, exact, moment]) input.addEventListener("change", begin)
  tail.toolbar.prepend(info.partition_list.length > 1 ? partition : "", h("span", { class: "dim" }, "From"), from, exact, moment)
  if (origin) place.append(h("p", { class: "dim" }, `Messages of ${origin.name} whose delivery failed (attempts: ${number(origin.max_attempts)}) are in `, link(["topics", info.name]), ". ",
    app.can("write") && button("Send all shown again", (event) => allAgain(app, tail, event), { class: "small" })))
  place.append(...tail.element)
  place.classList.add("full")
  await begin()
}

async function again(app, message, event) {
  await act(event, () => app.client.topic(message.origin.topic).publish(message.payload, { key: message.key }), `Sent again to ${message.origin.topic}`)
}

async function allAgain(app, tail, event) {
  const rows = tail.list.rows.filter((row) => row.origin)
  if (!rows.length) return toast("There are no dead letters in the list")
  if (!(await confirm("Send again?", `${counted(rows.length, "message")} will be published to the topic where delivery failed, and stay here, too.`, "Send again", "primary"))) return
  await act(event, async () => {
    const byTopic = new Map()
    for (const row of rows) byTopic.set(row.origin.topic, [...(byTopic.get(row.origin.topic) ?? []), { payload: row.payload, key: row.key }])
    for (const [topic, all] of byTopic) for (let at = 0; at < all.length; at += 500) await app.client.topic(topic).publishMany(all.slice(at, at + 500))
  }, "Sent again")
}

function publish(app, info) {
  return form(`Publish to ${info.name}`, [
    field("Payload, JSON or text", h("textarea", { name: "payload", rows: 8, required: true, autofocus: true, spellcheck: "false" }, "{}")),
    h("div", { class: "fields" }, field("Key", h("input", { name: "key" }), "Decides the partition."), field("Partition", h("input", { name: "partition", inputmode: "numeric" }))),
  ], "Publish", async ({ payload, key, partition }) => {
    let value = payload
    try {
      value = JSON.parse(payload)
    } catch {
      // it is sent as text
    }
    const sent = await app.client.topic(info.name).publish(value, { key: key || undefined, partition: partition === "" ? undefined : Number(partition) })
    toast(`Published: partition ${sent.partition}, offset ${number(sent.offset)}`)
  })
}

// -- groups

async function groups(app, info, place) {
  const found = h("div")
  const trend = new Map()
  place.append(found)
  const load = async () => {
    const now = await app.client.topic(info.name).describe({ signal: app.signal }).catch(() => undefined)
    if (!now || app.signal.aborted) return
    const ends = new Map(now.partition_list.map((each) => [each.partition_id, each]))
    const rows = grouped(now.groups)
    for (const { group_id: id, lag } of rows) trend.set(id, [...(trend.get(id) ?? []), lag].slice(-40))
    found.replaceChildren(grid([
      { name: "Group", value: (row) => h("b", {}, row.group_id) },
      { name: "Lag", class: "num", value: (row) => number(row.lag) },
      { name: "Behind", class: "num", title: "The age of the oldest message that is not acknowledged", value: (row) => (row.oldest_at ? seconds(Math.max(0, Math.round((Date.now() - Date.parse(row.oldest_at)) / 1000))) : dim("–")) },
      { name: "Trend", value: (row) => sparkline(trend.get(row.group_id)) },
      { name: "In flight", class: "num", value: (row) => number(row.in_flight) },
      { name: "Retry", class: "num", title: "Returned, or their lease has ended: they are delivered again", value: (row) => number(row.pending) },
      { name: "Redelivered", class: "num", title: "Of all deliveries, those that were not the first", value: (row) => h("span", { title: `of ${number(row.delivered)} deliveries` }, number(row.redelivered)) },
      { name: "Lost", class: "num", value: (row) => (row.lost ? badge(number(row.lost), "bad") : "0") },
      { name: "Consumers", value: (row) => [...row.consumers].join(", ") || dim("none") },
      { name: "Active", value: (row) => ago(row.updated_at) },
      { name: "", value: (row) => app.can("consume") && [button("Reset", () => reset(app, now, row, ends, load), { class: "small" }), " ", button("Who", () => acknowledged(app, now, row), { class: "small" })] },
    ], rows, { label: "Groups", empty: "No group has consumed from this topic yet." }))
  }
  await poll(load, 3_000, app.signal)
}

/** Who has acknowledged messages as a member of the group, and when. */
async function acknowledged(app, info, group) {
  const place = h("div")
  const load = async () => {
    const rows = await app.client.topic(info.name).acknowledgements(group.group_id, { limit: 200, signal: app.signal })
    return grid([
      { name: "Time", value: (row) => time(row.at) },
      { name: "Consumer", value: (row) => row.consumer_id || dim("–") },
      { name: "User", value: (row) => row.by },
      { name: "Partition", class: "num", value: (row) => row.partition_id },
      { name: "Offsets", class: "num", value: (row) => (row.first_offset === row.last_offset ? number(row.first_offset) : `${number(row.first_offset)} to ${number(row.last_offset)}`) },
      { name: "Messages", class: "num", value: (row) => number(row.last_offset - row.first_offset + 1) },
    ], rows, { label: "Acknowledgements", empty: "No acknowledgement is on record." })
  }
  show(place, load, app.signal)
  await dialog(`Who has consumed as ${group.group_id}`, () => h("div", { class: "body" }, h("p", { class: "dim" }, "The last acknowledgements, the newest first. Those of one consumer within a second are one row."), place), { class: "wide" })
}

function sparkline(values) {
  const [width, height] = [44, 18]
  const top = Math.max(...values, 1)
  const points = values.map((value, at) => `${((at / Math.max(1, values.length - 1)) * width).toFixed(1)} ${(height - 1 - (value / top) * (height - 2)).toFixed(1)}`)
  return s("svg", { width, height, role: "img", "aria-label": `Lag, lately: ${values.at(0)} to ${values.at(-1)}` }, s("path", { class: "line", d: `M${points.join("L")}${values.length === 1 ? `h${width}` : ""}` }))
}

/** Reset a group, after a look at what that means for each partition. */
async function reset(app, info, group, ends, changed) {
  const to = select([["EARLIEST", "the earliest message"], ["LATEST", "the end"], ["OFFSET", "an offset"], ["TIMESTAMP", "a time"]], "EARLIEST", { name: "to" })
  const offset = h("input", { name: "offset", inputmode: "numeric", "aria-label": "Offset", hidden: true })
  const moment = h("input", { name: "time", type: "datetime-local", step: "1", "aria-label": "Time", hidden: true })
  const preview = h("div", { class: "preview", role: "status" })
  let turn = 0
  const targets = async () => {
    if (to.value === "EARLIEST") return (id) => ends.get(id).start_offset
    if (to.value === "LATEST") return (id) => ends.get(id).next_offset
    if (to.value === "OFFSET") return offset.value === "" ? undefined : (id) => Math.min(Math.max(Number(offset.value), ends.get(id).start_offset), ends.get(id).next_offset)
    if (!moment.value) return undefined
    const { offsets } = await app.client.request("GET", "/v1/logs/at", { query: { topic: info.name, timestamp: new Date(moment.value).getTime() } })
    return (id) => offsets[id] ?? ends.get(id).next_offset
  }
  const draw = async () => {
    const mine = ++turn
    offset.hidden = to.value !== "OFFSET"
    moment.hidden = to.value !== "TIMESTAMP"
    const target = await targets().catch((error) => void preview.replaceChildren(h("p", { class: "error" }, error.message)))
    if (mine !== turn) return
    if (!target) return preview.replaceChildren(dim("Choose where the group continues."))
    // A reset is one of all partitions, also of those that the group has not consumed from: it would begin at their start.
    const rows = [...ends.values()].map(({ partition_id, start_offset, next_offset }) => {
      const begun = group.partitions.find((each) => each.partition_id === partition_id)
      return { partition_id, begun, last_acked_offset: begun?.last_acked_offset ?? start_offset - 1, to: target(partition_id), end: next_offset }
    })
    const repeated = rows.reduce((sum, row) => sum + Math.max(0, row.last_acked_offset + 1 - row.to), 0)
    const skipped = rows.reduce((sum, row) => sum + Math.max(0, row.to - row.last_acked_offset - 1), 0)
    preview.replaceChildren(
      h("p", {}, repeated ? h("b", {}, `${counted(repeated, "acknowledged message")} will be delivered again. `) : "", skipped ? h("b", {}, `${counted(skipped, "message")} will be skipped. `) : "", !repeated && !skipped ? "The group stays where it is." : ""),
      grid([
        { name: "Partition", value: (row) => row.partition_id },
        { name: "Acknowledged up to", class: "num", value: (row) => (row.begun ? number(row.last_acked_offset) : dim("not begun")) },
        { name: "Continues at", class: "num", value: (row) => number(row.to) },
        { name: "Lag then", class: "num", value: (row) => number(row.end - row.to) },
      ], rows, { label: "What the reset does" }))
  }
  for (const input of [to, offset, moment]) input.addEventListener("input", draw)
  draw()
  const done = await form(`Reset ${group.group_id}`, [h("div", { class: "bar" }, field("Continue at", to), offset, moment), preview], "Reset", async () => {
    if (to.value === "OFFSET" && !/^\d+$/.test(offset.value)) throw new Error("Give the offset of a message, a whole number.")
    if (to.value === "TIMESTAMP" && !moment.value) throw new Error("Give a time.")
    const where = to.value === "OFFSET" ? `OFFSET ${Number(offset.value)}` : to.value === "TIMESTAMP" ? `TIMESTAMP ${new Date(moment.value).getTime()}` : to.value
    await app.client.sql(`RESET CONSUMER GROUP ${quoted(group.group_id)} ON ${named(info.name)} TO ${where}`)
  })
  if (done) {
    toast(`${group.group_id} was reset`)
    changed()
  }
}
