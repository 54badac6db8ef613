/** Streams: the list, and one of them with its messages, forks and settings. */

import { Tail, whole } from "./tail.js"
import { act, ago, badge, button, bytes, card, clock, code, confirm, dim, facts, field, form, grid, h, link, number, poll, seconds, select, show, state, tabs, time } from "./ui.js"

const LIMIT = 100
const SMALL_BYTES = 262_144 // read from the beginning
const RECENT_MS = 60_000

export default async function streams(app) {
  return app.parts.length ? one(app, app.parts.join("/")) : list(app)
}

// -- the list

async function list(app) {
  const { client, query, signal } = app
  const search = h("input", { type: "search", value: query.search ?? "", placeholder: "Search streams", "aria-label": "Search streams" })
  const found = h("div")
  const [rates, seen] = [new Map(), new Map()]
  const end = (row) => Number(row.tail_offset.split("_").at(-1))
  let turn = 0
  let again = async () => {}
  const load = async () => {
    const mine = ++turn
    const rows = []
    let after
    const draw = () => [
      grid([
        { name: "Stream", class: "name", value: (row) => link(["streams", row.path], row.path, {}, { title: row.path }) },
        { name: "", value: (row) => [row.closed && badge("closed"), row.forked_from && badge("fork", "accent")] },
        { name: "Type", value: (row) => row.content_type },
        { name: "Size", class: "num", value: (row) => bytes(row.bytes) },
        { name: "Rate", class: "num", title: "Bytes that were appended per second, lately", value: (row) => (rates.has(row.path) ? (rates.get(row.path) ? `${bytes(rates.get(row.path))}/s` : dim("0")) : dim("–")) },
        { name: "Last append", value: (row) => ago(row.appended_at) },
        { name: "Keeps", value: kept },
      ], rows, { label: "Streams", onrow: (row) => app.go(["streams", row.path]), empty: search.value ? `No stream has “${search.value}” in its path.` : "There are no streams yet. Create one here, or with PUT /v1/stream/<path>." }),
      after && h("p", {}, button("Show more", (event) => act(event, async () => (await more(), found.replaceChildren(...draw().filter(Boolean)))))),
    ]
    const more = async () => {
      const page = await client.streams({ search: search.value.trim() || undefined, after, limit: LIMIT, signal })
      rows.push(...page.streams)
      after = page.next
      if (!page.streams.length && after) await more()
    }
    again = async () => {
      const began = performance.now()
      const page = await client.streams({ search: search.value.trim() || undefined, limit: LIMIT, signal })
      if (mine !== turn || signal.aborted) return
      for (const now of page.streams) {
        const at = rows.findIndex((row) => row.path === now.path)
        if (at >= 0) rows[at] = now
        const before = seen.get(now.path)
        if (before) rates.set(now.path, Math.max(0, Math.round(((end(now) - before[1]) / (began - before[0])) * 1000)))
        seen.set(now.path, [began, end(now)])
      }
      if (!found.contains(document.activeElement)) found.replaceChildren(...draw().filter(Boolean))
    }
    await show(found, async () => {
      await more()
      return mine === turn ? draw() : [...found.children]
    }, signal)
  }
  let timer
  search.addEventListener("input", () => {
    clearTimeout(timer)
    timer = setTimeout(() => {
      app.go(["streams"], { search: search.value }, { quiet: true })
      load()
    }, 150)
  })
  app.put(h("div", { class: "head" }, h("h1", {}, "Streams"), search, app.can("write") && button("New stream", () => create(app), { class: "primary" })), found)
  await load()
  await poll(() => again(), 3_000, signal)
}

const kept = (row) => [row.ttl_s && `${seconds(row.ttl_s)} unused`, row.expires_at && !row.ttl_s && ["until ", time(row.expires_at)], row.max_age_s && `${seconds(row.max_age_s)}`, row.max_bytes && bytes(row.max_bytes)].filter(Boolean).flatMap((part, at) => (at ? [", ", part] : [part])).flat()

function create(app) {
  const parts = [
    field("Path", h("input", { name: "path", required: true, autofocus: true, placeholder: "notes/today" })),
    field("Content type", select(["application/json", "text/plain", "application/octet-stream"], "application/json", { name: "type" })),
    h("div", { class: "fields" },
      field("Keep messages for (s)", h("input", { name: "age", inputmode: "numeric" }), "Empty: forever."),
      field("Keep at most (bytes)", h("input", { name: "bytes", inputmode: "numeric" })),
      field("Delete unused after (s)", h("input", { name: "ttl", inputmode: "numeric" }))),
  ]
  return form("New stream", parts, "Create", async ({ path, type, age, bytes: most, ttl }) => {
    await app.client.stream(path, { contentType: type }).create({
      maxAgeMs: age ? Number(age) * 1000 : undefined,
      maxBytes: most ? Number(most) : undefined,
      ttlMs: ttl ? Number(ttl) * 1000 : undefined,
    })
    app.go(["streams", path])
  })
}

// -- one stream

async function described(app, path) {
  const { streams: found } = await app.client.streams({ prefix: path, limit: 1, signal: app.signal })
  if (found[0]?.path === path) return found[0]
  const head = await app.client.stream(path).head({ signal: app.signal }) // 404, and why
  return { path, content_type: head.contentType, tail_offset: head.offset, closed: head.closed, bytes: null }
}

async function one(app, path) {
  const info = await described(app, path)
  const tab = app.query.tab ?? "messages"
  const place = h("div", { class: "page" })
  app.put(
    h("div", { class: "head" }, h("h1", {}, path), badge(info.content_type), info.closed && badge("closed", "warn"), h("span", { class: "dim" }, bytes(info.bytes)), app.can("write") && !info.closed && button("Append", () => append(app, info), { class: "primary" })),
    tabs(["streams", path], {}, [["messages", "Messages"], ["forks", "Forks"], ["settings", "Settings"]], tab, "Parts of the stream"),
    place,
  )
  if (tab === "forks") return show(place, () => forks(app, info), app.signal)
  if (tab === "settings") return place.append(settings(app, info))
  return messages(app, info, place)
}

async function offsetAt(app, path, atMs) {
  const { offsets } = await app.client.request("GET", "/v1/logs/at", { query: { stream: path, timestamp: Math.round(atMs) }, signal: app.signal })
  return `0000000000000000_${String(Object.values(offsets)[0] ?? 0).padStart(16, "0")}`
}

async function messages(app, info, place) {
  const stream = app.client.stream(info.path, { contentType: info.content_type })
  // Messages that were there before have no time of arrival: the protocol does not send when they were written.
  const rowsOf = (page, live) => {
    const at = live ? Date.now() : undefined
    const json = /^application\/json/i.test(info.content_type)
    const values = json ? page.messages : /^text\//i.test(info.content_type) ? page.text.split(/(?<=\n)/) : [page.bytes]
    return { rows: values.map((value) => ({ value, at, number: ++rank })), offset: page.offset, upToDate: page.upToDate, closed: page.closed }
  }
  let rank = 0
  const text = (row) => (row.text ??= row.value instanceof Uint8Array ? `${row.value.length} bytes` : typeof row.value === "string" ? row.value.trimEnd() : JSON.stringify(row.value))
  const tail = new Tail({
    label: "Messages",
    signal: app.signal,
    text,
    cells: (row) => [row.at ? clock(new Date(row.at)) : `#${number(row.number)}`, text(row).slice(0, 400)],
    detail: (row) => [h("h2", {}, row.at ? ["Received ", time(row.at)] : `Message ${number(row.number)} of this list`), whole(row.value)],
    read: async (offset) => rowsOf(await stream.read({ offset, signal: app.signal }), false),
    follow: async function* (offset, signal) {
      let live = offset === "now"
      for await (const page of stream.follow({ offset, signal })) {
        yield rowsOf(page, live)
        live ||= page.upToDate
      }
    },
  })
  const from = select([["recent", "the latest messages"], ["-1", "the beginning"], ["now", "now on"], ["offset", "an offset"], ["time", "a time"]], app.query.from ?? "recent", { "aria-label": "Start at" })
  const exact = h("input", { "aria-label": "Offset", hidden: true, placeholder: info.tail_offset })
  const moment = h("input", { type: "datetime-local", step: "1", "aria-label": "Time", hidden: true })
  const begin = async () => {
    exact.hidden = from.value !== "offset"
    moment.hidden = from.value !== "time"
    if (from.value === "offset" && !exact.value) return exact.focus()
    if (from.value === "time" && !moment.value) return moment.focus()
    rank = 0
    await act(undefined, async () => {
      if (from.value === "recent") return tail.start(info.bytes === null || info.bytes <= SMALL_BYTES ? "-1" : offsetAt(app, info.path, Date.parse(info.appended_at) - RECENT_MS).catch(() => "now"), !info.closed)
      if (from.value === "offset") return tail.start(exact.value.trim(), false)
      if (from.value === "time") return tail.start(offsetAt(app, info.path, new Date(moment.value).getTime()), false)
      return tail.start(from.value, from.value === "now")
    })
  }
  for (const input of [from, exact, moment]) input.addEventListener("change", begin)
  tail.toolbar.prepend(h("span", { class: "dim" }, "From"), from, exact, moment)
  place.append(...tail.element)
  place.classList.add("full")
  await begin()
}

function append(app, info) {
  const json = /^application\/json/i.test(info.content_type)
  const text = h("textarea", { name: "message", rows: 10, required: true, autofocus: true, spellcheck: "false" }, json ? '{\n  "text": "hello"\n}' : "")
  return form(`Append to ${info.path}`, field(json ? "Message, as JSON" : "Message", text, json ? "An array is one message." : undefined), "Append", async ({ message }) => {
    let value = message
    if (json) {
      try {
        value = JSON.parse(message)
      } catch (error) {
        throw new Error(`This is not JSON: ${error.message}`)
      }
    }
    await app.client.stream(info.path, { contentType: info.content_type }).append(value)
  })
}

// -- forks

async function forks(app, info) {
  const all = new Map()
  let after
  for (let page = 0; page < 10; page++) {
    const found = await app.client.streams({ after, limit: 1000, signal: app.signal })
    for (const each of found.streams) all.set(each.path, each)
    after = found.next
    if (!after) break
  }
  let root = info
  for (let depth = 0; root.forked_from && all.get(root.forked_from) && depth < 100; depth++) root = all.get(root.forked_from)
  const children = Map.groupBy ? Map.groupBy(all.values(), (each) => each.forked_from) : [...all.values()].reduce((map, each) => map.set(each.forked_from, [...(map.get(each.forked_from) ?? []), each]), new Map())
  const drawn = (each, depth = 0) =>
    h("li", {}, each.path === info.path ? h("b", {}, each.path) : link(["streams", each.path], each.path, { tab: "forks" }), " ", h("small", {}, each.fork_offset ? `from offset ${number(Number(each.fork_offset.split("_").at(-1)))}, ` : "", bytes(each.bytes)),
      depth < 50 && children.get(each.path)?.length ? h("ul", {}, children.get(each.path).map((child) => drawn(child, depth + 1))) : undefined)
  return [
    card("Forks share the entries before the offset where they branch",
      root.forked_from && !all.get(root.forked_from) && h("p", { class: "dim" }, "Branched from ", code(root.forked_from), "."),
      h("ul", { class: "tree" }, drawn(root)),
      !children.get(info.path)?.length && !info.forked_from && h("p", { class: "dim" }, "This stream has no forks.")),
    after && state("Only the first 10,000 streams were searched for forks."),
    app.can("write") && h("p", {}, button("Fork this stream", () => fork(app, info))),
  ]
}

function fork(app, info) {
  const parts = [
    field("Path of the new stream", h("input", { name: "path", required: true, autofocus: true, value: `${info.path}-fork` })),
    field("Branch at offset", h("input", { name: "offset", placeholder: info.tail_offset }), "Empty: at the tail."),
  ]
  return form(`Fork ${info.path}`, parts, "Fork", async ({ path, offset }) => {
    const headers = { "content-type": info.content_type, "stream-forked-from": `/v1/stream/${info.path}` }
    if (offset) headers["stream-fork-offset"] = offset
    await app.client.request("PUT", `/v1/stream/${path.split("/").map(encodeURIComponent).join("/")}`, { headers, repeatable: true })
    app.go(["streams", path], { tab: "forks" })
  })
}

// -- settings

function settings(app, info) {
  const stream = app.client.stream(info.path)
  const close = async () => {
    if (!(await confirm(`Close ${info.path}?`, "Readers reach the end of it. A closed stream takes no more messages, for good.", "Close"))) return
    await act(undefined, () => stream.close(), "Closed")
    app.reload()
  }
  const remove = async () => {
    if (!(await confirm(`Delete ${info.path}?`, "Its messages are deleted for good.", "Delete"))) return
    if ((await act(undefined, async () => (await stream.delete(), true), "Deleted")) === true) app.go(["streams"])
  }
  return card("Settings",
    facts([
      ["Content type", info.content_type],
      ["Earliest offset", info.earliest_offset && code(info.earliest_offset)],
      ["Tail offset", code(info.tail_offset)],
      ["Size", bytes(info.bytes)],
      ["Created", time(info.created_at)],
      ["Last append", time(info.appended_at)],
      ["Messages are kept for", info.max_age_s ? seconds(info.max_age_s) : "no limit"],
      ["At most", info.max_bytes ? bytes(info.max_bytes) : "no limit"],
      ["Deleted if unused for", info.ttl_s ? seconds(info.ttl_s) : "–"],
      ["Expires", info.expires_at ? time(info.expires_at) : "never"],
      info.forked_from && ["Forked from", link(["streams", info.forked_from])],
    ], "wide"),
    app.can("write") && h("div", { class: "bar" }, !info.closed && button("Close stream", close), button("Delete stream", remove, { class: "danger" })))
}
