/** Tables: the list, items by scan and query, one item with its history, changes, and the table at a past moment. */

import { recovery } from "./recovery.js"
import { Tail } from "./tail.js"
import { Decimal, toAttributes } from "./tailrace.js"
import { act, ago, badge, button, bytes, card, clock, code, confirm, counted, dim, facts, field, form, fromItemJson, grid, h, href, itemJson, jsonView, link, LongGrid, number, seconds, select, show, state, tabs, time, toast } from "./ui.js"

const LIMIT = 100
const LIMIT_MORE = 500 // of the pages after the first
const COLUMNS = 10
const RECENT = 20 // changes, or more, are the latest ones
const CREATE = "CREATE TABLE my_table (\n  id TEXT PRIMARY KEY,\n  name TEXT\n) WITH (stream = 'NEW_AND_OLD_IMAGES')"

export default async function tables(app) {
  const [name, page] = app.parts
  if (!name) return list(app)
  const info = await described(app, name)
  return page === "item" ? item(app, info) : one(app, info)
}

export async function described(app, name) {
  const { tables: found } = await app.client.tables({ prefix: name, limit: 1, signal: app.signal })
  if (found[0]?.name !== name) throw Object.assign(new Error(`There is no table ${name}, or you have no permission for it.`), { status: 404 })
  return found[0]
}

export const keyNames = (table) => [table.partition_key, table.sort_key].filter(Boolean)
export const keyOf = (table, item) => Object.fromEntries(keyNames(table).map(({ name }) => [name, item[name]]))
export const keyText = (key) => Object.values(key).map((value) => (typeof value === "string" ? value : itemJson(value))).join(" / ")
const itemLink = (table, key, text) => link(["tables", table.name, "item"], text ?? keyText(key), { key: itemJson(key) })

// -- the list

async function list(app) {
  const { client, query, signal } = app
  const search = h("input", { type: "search", value: query.search ?? "", placeholder: "Search tables", "aria-label": "Search tables" })
  const found = h("div")
  let turn = 0
  const load = () => {
    const mine = ++turn
    const rows = []
    let after
    const more = async () => {
      const page = await client.tables({ search: search.value.trim() || undefined, after, limit: LIMIT, signal })
      rows.push(...page.tables)
      after = page.next
      if (!page.tables.length && after) await more()
    }
    const draw = () => [
      grid([
        { name: "Table", class: "name", value: (row) => link(["tables", row.name], row.name, {}, { title: row.name }) },
        { name: "Key", value: (row) => keyNames(row).map((key, at) => [at ? ", " : "", key.name, " ", dim(key.type)]) },
        { name: "Items", class: "num", value: (row) => number(row.items) },
        { name: "Size", class: "num", value: (row) => bytes(row.bytes) },
        { name: "Indexes", class: "num", value: (row) => row.indexes.length || "–" },
        { name: "Changes", value: (row) => (row.stream?.enabled ? badge(row.stream.view.toLowerCase().replaceAll("_", " "), "accent") : dim("off")) },
        { name: "Topics", value: (row) => [...new Set(row.routes.map((route) => route.topic))].map((topic, at) => [at ? ", " : "", link(["topics", topic])]) },
      ], rows, { label: "Tables", onrow: (row) => app.go(["tables", row.name]), empty: search.value ? `No table has “${search.value}” in its name.` : "There are no tables yet. Create one with CREATE TABLE, or any AWS SDK." }),
      after && h("p", {}, button("Show more", (event) => act(event, async () => (await more(), found.replaceChildren(...draw().filter(Boolean)))))),
    ]
    return show(found, async () => {
      await more()
      return mine === turn ? draw() : [...found.children]
    }, signal)
  }
  let timer
  search.addEventListener("input", () => {
    clearTimeout(timer)
    timer = setTimeout(() => {
      app.go(["tables"], { search: search.value }, { quiet: true })
      load()
    }, 150)
  })
  app.put(h("div", { class: "head" }, h("h1", {}, "Tables"), search, app.can("admin") && h("a", { class: "button primary", href: href(["sql"], { q: CREATE }) }, "New table")), found)
  await load()
}

// -- one table

async function one(app, info) {
  const tab = app.query.tab ?? "items"
  const place = h("div", { class: "page" })
  const names = [["items", "Items"], ["changes", "Changes"], ["at", "At a past moment"], ["settings", "Settings"]].filter(([name]) => info.stream || (name !== "changes" && name !== "at"))
  app.put(
    h("div", { class: "head" }, h("h1", {}, info.name), h("span", { class: "dim" }, `${counted(info.items, "item")}, ${bytes(info.bytes)}`), app.can("write") && button("New item", () => edit(app, info, undefined), { class: "primary" })),
    tabs(["tables", info.name], {}, names, tab, "Parts of the table"),
    place,
  )
  if (tab === "changes") return changes(app, info, place)
  if (tab === "at") return past(app, info, place)
  if (tab === "settings") return place.append(...settings(app, info))
  return items(app, info, place)
}

/** The columns of items: the key first, then the attributes in the order in which they occur. */
function itemColumns(table, rows) {
  const keys = keyNames(table).map(({ name }) => name)
  const seen = new Set(keys)
  for (const row of rows) for (const name of Object.keys(row)) seen.add(name)
  const shown = [...seen].slice(0, COLUMNS)
  const columns = shown.map((name) => ({
    name,
    class: rows.every((row) => row[name] === undefined || typeof row[name] === "number" || row[name] instanceof Decimal) ? "num" : undefined,
    value: (row) => (keys[0] === name ? itemLink(table, keyOf(table, row), String(row[name])) : cell(row[name])),
  }))
  if (seen.size > shown.length) columns.push({ name: `+${seen.size - shown.length}`, value: (row) => dim(`${Object.keys(row).filter((name) => !shown.includes(name)).length} more`) })
  return columns
}

/** Items as a table that can be read on: by `more(rows)`, with a button or by scrolling to the end, while `isMore()`. */
class ItemGrid {
  #rows = []
  #reading = false

  constructor(app, table, { label, empty, more, isMore }) {
    Object.assign(this, { table, empty, more, isMore })
    this.grid = new LongGrid({ label, onrow: (row) => app.go(["tables", table.name, "item"], { key: itemJson(keyOf(table, row)) }), atEnd: () => this.#readOn() })
    this.count = h("span", { class: "dim", role: "status" })
    this.button = button("Show more", () => this.#readOn())
    this.bar = h("div", { class: "bar center" }, this.count, this.button)
    this.element = h("div", { class: "page" }, this.grid.element, this.bar)
  }

  async read() {
    await this.more(this.#rows)
    const rows = this.#rows
    const body = rows.length ? this.grid.element : state(this.empty())
    if (body !== this.element.firstChild) this.element.firstChild.replaceWith(body)
    if (rows.length) this.grid.set(itemColumns(this.table, rows), rows)
    this.count.textContent = `${counted(rows.length, "item")}${this.isMore() ? ", and more" : ""}`
    this.button.hidden = !this.isMore()
    this.bar.hidden = !rows.length && !this.isMore()
    return this.element
  }

  async #readOn() {
    if (this.#reading || !this.isMore()) return
    this.#reading = true
    await act(this.button, () => this.read())
    this.#reading = false
  }
}

const cell = (value) => (value === undefined ? dim("–") : typeof value === "object" && value !== null && !(value instanceof Decimal) ? itemJson(value).slice(0, 200) : value === null ? dim("null") : String(value).slice(0, 200))

const OPERATORS = ["=", "<>", "<", "<=", ">", ">=", "begins_with", "contains", "between", "exists", "not exists"]
const KEY_OPERATORS = ["=", "<", "<=", ">", ">=", "begins_with", "between"]

/** What the user wrote as a value: of the type of the key, else JSON, else text. */
function valueOf(text, type) {
  if (type === "S") return text
  if (type === "B") return Uint8Array.from(atob(text), (each) => each.charCodeAt(0))
  if (/^-?\d+(\.\d+)?$/.test(text)) return text.replace(/[-.]/g, "").length > 15 ? new Decimal(text) : Number(text)
  if (type === "N") throw new Error(`${text} is not a number`)
  try {
    return fromItemJson(JSON.parse(text), Decimal)
  } catch {
    return text
  }
}

/** An expression of terms, with the placeholders of its names and values. */
export function expression(terms, prefix, names = {}, values = {}) {
  const texts = terms.map(({ name, operator, value, upper, type }, at) => {
    const [n, v] = [`#${prefix}${at}`, `:${prefix}${at}`]
    names[n] = name
    if (operator === "exists") return `attribute_exists(${n})`
    if (operator === "not exists") return `attribute_not_exists(${n})`
    values[v] = valueOf(value, type)
    if (operator === "between") {
      values[`${v}b`] = valueOf(upper ?? value, type)
      return `${n} BETWEEN ${v} AND ${v}b`
    }
    return operator === "begins_with" || operator === "contains" ? `${operator}(${n}, ${v})` : `${n} ${operator} ${v}`
  })
  return { text: texts.join(" AND "), names, values }
}

async function items(app, info, place) {
  const start = app.query
  const sources = [["", `table ${info.name}`], ...info.indexes.map((index) => [index.name, `index ${index.name}`])]
  const source = select(sources, start.index ?? "", { "aria-label": "Read" })
  const descending = h("input", { type: "checkbox", id: "descending", checked: start.desc === "1" })
  const keys = h("div", { class: "terms" })
  const filters = h("div", { class: "terms" })
  const made = h("small", { class: "mono" })
  const found = h("div", { class: "page" })
  const schema = () => {
    const index = info.indexes.find(({ name }) => name === source.value)
    return index ? { partition: index.partition_key, sort: index.sort_key } : { partition: [info.partition_key], sort: info.sort_key ? [info.sort_key] : [] }
  }
  const term = (name, operators, given = {}, type) => {
    const fixed = name !== undefined
    const attribute = fixed ? h("input", { value: name, readonly: true, "aria-label": "Attribute" }) : h("input", { value: given.name ?? "", placeholder: "attribute", "aria-label": "Attribute", list: "attributes" })
    const operator = select(operators, given.operator ?? operators[0], { "aria-label": "Comparison" })
    const value = h("input", { value: given.value ?? "", placeholder: type ? `${{ S: "text", N: "number", B: "base64" }[type]}` : "value", "aria-label": `Value of ${name ?? "the attribute"}`, title: type ? undefined : "Text, or JSON: 12, true, null, \"12\"" })
    const upper = h("input", { value: given.upper ?? "", placeholder: "and", "aria-label": "Upper bound", hidden: operator.value !== "between" })
    operator.addEventListener("change", () => {
      upper.hidden = operator.value !== "between"
      value.hidden = operator.value.endsWith("exists")
    })
    const row = h("div", { class: "term" }, attribute, operator, value, upper, !fixed && button("Remove", () => row.remove(), { class: "plain" }))
    row.term = () => ({ name: attribute.value.trim(), operator: operator.value, value: value.value, upper: upper.value, type })
    return row
  }
  const drawKeys = () => {
    const { partition, sort } = schema()
    keys.replaceChildren(...partition.map((key, at) => term(key.name, ["="], at === 0 ? { value: start.pk } : {}, key.type)), ...sort.map((key) => term(key.name, KEY_OPERATORS, {}, key.type)))
  }
  source.addEventListener("change", drawKeys)
  drawKeys()
  const attributes = h("datalist", { id: "attributes" })
  const request = () => {
    const { partition } = schema()
    const given = [...keys.children].map((row) => row.term()).filter(({ value }) => value !== "")
    const query = partition.every(({ name }) => given.some((each) => each.name === name))
    const filter = expression([...filters.children].map((row) => row.term()).filter(({ name }) => name).concat(query ? [] : given), "f")
    const key = query ? expression(given, "k", filter.names, filter.values) : undefined
    const options = {
      index: source.value || undefined,
      filter: filter.text || undefined,
      names: Object.keys(filter.names).length ? filter.names : undefined,
      values: Object.keys(filter.values).length ? filter.values : undefined,
      limit: LIMIT,
    }
    const readable = (text) => Object.entries({ ...filter.names, ...Object.fromEntries(Object.entries(filter.values).map(([name, value]) => [name, itemJson(value)])) }).sort(([a], [b]) => b.length - a.length).reduce((now, [name, value]) => now.replaceAll(name, value), text)
    made.textContent = `${query ? `Query ${readable(key.text)}` : "Scan"}${filter.text ? ` filter ${readable(filter.text)}` : ""}`
    return key ? { ...options, key: key.text, descending: descending.checked } : options
  }
  let turn = 0
  const run = (event) => {
    event?.preventDefault()
    const mine = ++turn
    let options
    let examined = 0
    // A page of a filter may be empty: read on until there is something to show, for a while.
    const more = async (rows) => {
      options ??= { ...request(), signal: app.signal }
      const table = app.client.table(info.name)
      for (let pages = 0; pages < 20; pages++) {
        const page = options.key ? await table.query(options) : await table.scan(options)
        rows.push(...page.items)
        examined += options.limit
        options.startKey = page.lastKey
        options.limit = LIMIT_MORE
        if (!page.lastKey || page.items.length) break
      }
      attributes.replaceChildren(...[...new Set(rows.flatMap(Object.keys))].map((name) => h("option", { value: name })))
    }
    const isMore = () => !!options?.startKey
    const empty = () => (info.items ? (isMore() ? `None of the first ${number(examined)} items matches.` : "No item matches.") : "This table has no items yet.")
    const list = new ItemGrid(app, info, { label: "Items", empty, more, isMore })
    return show(found, async () => {
      const made = await list.read()
      return mine === turn ? made : [...found.children]
    }, app.signal)
  }
  const builder = h("form", { class: "card", onsubmit: run },
    h("div", { class: "bar center" }, h("span", { class: "dim" }, "Read"), source, h("label", { class: "check", for: "descending" }, descending, "descending"), button("Add filter", () => filters.append(term(undefined, OPERATORS))), h("span", { class: "grow" }), h("button", { class: "primary" }, "Run")),
    keys, filters, made, attributes)
  place.append(builder, found)
  await run()
}

// -- changes

const EVENTS = { INSERT: "good", MODIFY: "accent", REMOVE: "bad" }

async function changes(app, info, place) {
  const table = app.client.table(info.name)
  const text = (row) => (row.text ??= itemJson({ ...row, offset: undefined, text: undefined }))
  const tail = new Tail({
    label: "Changes",
    columns: "changes",
    signal: app.signal,
    text,
    cells: (row) => [String(row.sequence), clock(new Date(row.at)), row.event, `${keyText(row.keys)}  ${diffText(row)}`],
    detail: (row) => [
      h("h2", {}, badge(row.event, EVENTS[row.event]), " ", time(row.at), row.by && ` by ${row.by}`),
      h("div", { class: "bar" }, itemLink(info, row.keys, "Item and history"), link(["follow"], "Follow this write", { table: info.name, sequence: row.sequence, key: itemJson(row.keys) })),
      diff(row.old, row.new),
      jsonView({ ...row, offset: undefined, text: undefined }),
    ],
    read: async (offset) => {
      const page = await table.changes({ offset, signal: app.signal })
      return { rows: page.changes, offset: page.offset, upToDate: page.upToDate }
    },
    follow: async function* (offset, signal) {
      for await (const change of table.follow({ offset, signal })) yield { rows: [change], offset: change.offset }
    },
  })
  const from = select([["recent", "the latest changes"], ["-1", "the beginning"], ["now", "now on"], ["time", "a time"]], app.query.from ?? "recent", { "aria-label": "Start at" })
  const moment = h("input", { type: "datetime-local", step: "1", "aria-label": "Time", hidden: true })
  const begin = () => act(undefined, async () => {
    moment.hidden = from.value !== "time"
    if (from.value === "time" && !moment.value) return moment.focus()
    if (from.value === "recent") return tail.start(latest(table, app.signal), true)
    if (from.value === "time") {
      const query = { table: info.name, timestamp: new Date(moment.value).getTime() }
      return tail.start(app.client.request("GET", "/v1/logs/at", { query, signal: app.signal }).then(({ offsets }) => offsetOf(offsets[0] ?? 0)), false)
    }
    return tail.start(from.value, from.value === "now")
  })
  for (const input of [from, moment]) input.addEventListener("change", begin)
  tail.toolbar.prepend(h("span", { class: "dim" }, "From"), from, moment)
  place.append(...tail.element)
  place.classList.add("full")
  await begin()
}

const offsetOf = (position) => `0000000000000000_${String(position).padStart(16, "0")}`

/** Where the latest changes begin. Positions are those of the whole database: go back until there are some of this table. */
async function latest(table, signal) {
  const { offset: end } = await table.changes({ offset: "now", signal })
  const position = Number(end.split("_").at(-1))
  for (let back = 250; back < position; back *= 8) {
    const offset = offsetOf(position - back)
    const page = await table.changes({ offset, signal }).catch((error) => {
      if (error.status !== 410) throw error // of 410: it is before the first change
    })
    if (!page) break
    if (page.changes.length >= RECENT) return offset
  }
  return "-1"
}

const diffText = (row) => [...differences(row.old, row.new)].map(({ name, after }) => `${name}=${after === undefined ? "∅" : itemJson(after)}`).join(" ").slice(0, 300)

function* differences(old = {}, now = {}) {
  for (const name of new Set([...Object.keys(old ?? {}), ...Object.keys(now ?? {})])) {
    const [before, after] = [old?.[name], now?.[name]]
    if (itemJson(before) !== itemJson(after)) yield { name, before, after }
  }
}

export function diff(old, now) {
  const all = [...differences(old, now)]
  if (!all.length) return h("div", { class: "diff empty" }, "The attributes are the same.")
  const line = (kind, sign, name, value) => h("div", { class: kind }, h("span", {}, sign), h("span", {}, name), h("span", {}, itemJson(value)))
  return h("div", { class: "diff" }, all.flatMap(({ name, before, after }) => [before !== undefined && line("minus", "−", name, before), after !== undefined && line("plus", "+", name, after)].filter(Boolean)))
}

// -- a past moment

async function past(app, info, place) {
  const { client, query } = app
  const by = select([["time", "Time"], ["sequence", "Sequence"]], query.sequence ? "sequence" : "time", { "aria-label": "Moment by" })
  const pad = (at) => new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19)
  const moment = h("input", { type: "datetime-local", step: "1", "aria-label": "Time", value: query.time ?? pad(new Date(Date.now() - 60_000)) })
  const sequence = h("input", { inputmode: "numeric", "aria-label": "Sequence", value: query.sequence ?? "" })
  const found = h("div", { class: "page" })
  const which = () => {
    moment.hidden = by.value !== "time"
    sequence.hidden = by.value !== "sequence"
  }
  by.addEventListener("change", which)
  which()
  let turn = 0
  const run = (event) => {
    event?.preventDefault()
    const mine = ++turn
    let page
    const title = h("p", { class: "dim" })
    const more = async (rows) => {
      const at = page ? { sequence: page.sequence } : by.value === "time" ? { time: new Date(moment.value) } : { sequence: sequence.value }
      page = await client.table(info.name).at({ ...at, after: page?.next ?? undefined, limit: page ? LIMIT_MORE : LIMIT, signal: app.signal })
      rows.push(...page.items)
      title.textContent = `The table after sequence ${number(page.sequence)}${page.next ? "" : `: ${counted(rows.length, "item")}`}.`
    }
    const list = new ItemGrid(app, info, { label: "Items at that moment", empty: () => "The table had no items then.", more, isMore: () => !!page?.next })
    return show(found, async () => {
      const made = await list.read()
      return mine === turn ? [title, made] : [...found.children]
    }, app.signal)
  }
  place.append(h("form", { class: "bar", onsubmit: run }, by, moment, sequence, h("button", { class: "primary" }, "Show the table")), found)
  if (query.time || query.sequence) await run()
  else found.append(state("Choose a moment: the table is computed from its history, hot and cold."))
}

// -- settings

function settings(app, info) {
  return [
    card("Table", facts([
      ["Partition key", `${info.partition_key.name} (${info.partition_key.type})`],
      ["Sort key", info.sort_key ? `${info.sort_key.name} (${info.sort_key.type})` : "–"],
      ["Items", number(info.items)],
      ["Size", bytes(info.bytes)],
      ["Created", time(info.created_at)],
      ["Expiry attribute", info.ttl_attribute ?? "–"],
      ["Change stream", info.stream ? `${info.stream.view}${info.stream.enabled ? "" : " (disabled)"}` : "off"],
      info.stream && ["Changes are kept for", info.stream.max_age_s ? seconds(info.stream.max_age_s) : "no limit"],
    ])),
    info.columns.length > 0 && card("Columns", grid([{ name: "Column", value: (row) => row.name }, { name: "Type", value: (row) => row.type }, { name: "", value: (row) => row.required && badge("not null") }], info.columns, { label: "Columns" })),
    card("Indexes", grid([
      { name: "Index", value: (row) => row.name },
      { name: "Key", value: (row) => [...row.partition_key, ...row.sort_key].map((key) => `${key.name} ${key.type}`).join(", ") },
      { name: "Kind", value: (row) => (row.local ? "local" : "global") },
      { name: "Projection", value: (row) => row.projection },
      { name: "Items", class: "num", value: (row) => number(row.items) },
      { name: "", value: (row) => badge(row.status.toLowerCase(), row.status === "ACTIVE" ? "good" : "warn") },
    ], info.indexes, { label: "Indexes", empty: "No indexes." })),
    card("Routes to topics", grid([
      { name: "Topic", value: (row) => link(["topics", row.topic]) },
      { name: "On", value: (row) => row.op },
      { name: "Where", class: "wrap", value: (row) => (row.filter ? code(row.filter) : dim("all")) },
      { name: "Payload", value: (row) => row.payload_mode },
      { name: "Partition by", value: (row) => (row.partition_by ? code(row.partition_by) : dim("key")) },
      { name: "Name", value: (row) => row.name ?? dim("–") },
    ], info.routes, { label: "Routes", empty: "No topic has this table as a source." })),
    recovery(app, info),
  ].filter(Boolean)
}

// -- one item

async function item(app, info) {
  const key = fromItemJson(JSON.parse(app.query.key ?? "{}"), Decimal)
  const table = app.client.table(info.name)
  const current = h("div")
  const history = h("div")
  const load = () => Promise.all([
    show(current, async () => {
      const now = await table.get(key, { signal: app.signal })
      if (!now) return card("Now", state("There is no item with this key now.", app.can("write") && button("Create it", () => edit(app, info, undefined, key, load))))
      const remove = async () => {
        if (!(await confirm("Delete this item?", `${info.name} ${keyText(key)}`, "Delete"))) return
        await act(undefined, () => save(app, info, key, now, undefined), "Deleted")
        load()
      }
      return h("section", { class: "card" }, h("header", {}, h("h2", {}, "Now"), app.can("write") && button("Edit", () => edit(app, info, now, key, load), { class: "small" }), app.can("write") && button("Delete", remove, { class: "small danger" })), jsonView(now))
    }, app.signal),
    info.stream ? show(history, () => timeline(app, info, key, load), app.signal) : history.replaceChildren(card("History", state("This table has no change stream, so its items have no history."))),
  ])
  app.put(h("div", { class: "head" }, h("h1", {}, keyText(key)), link(["tables", info.name], `in ${info.name}`)), h("div", { class: "two item" }, history, current))
  await load()
}

async function timeline(app, info, key, changed) {
  const versions = []
  let before
  const more = async () => {
    const page = await app.client.table(info.name).history(key, { before, limit: 20, signal: app.signal })
    versions.push(...page.versions)
    before = page.next ?? undefined
    if (!page.versions.length && before && !app.signal.aborted) await more()
  }
  await more()
  const place = h("section", { class: "card" })
  const draw = () => {
    const entry = (version, at) => {
      const image = version.new ?? undefined
      const back = app.can("write") && at > 0 && image && button("Restore this version", () => restore(app, info, key, image, changed), { class: "small" })
      return h("li", { class: version.event === "REMOVE" ? "removed" : "" },
        h("header", {}, badge(version.event, EVENTS[version.event]), time(version.at), h("span", {}, "by ", h("b", {}, version.by || "–")), badge(version.where, version.where === "hot" ? "warn" : "accent"), dim(`sequence ${version.sequence}`)),
        h("div", { class: "body" }, version.old || version.new ? diff(version.old, version.new) : h("div", { class: "diff empty" }, `The change stream keeps keys only (${info.stream.view}).`),
          h("div", { class: "bar center" }, link(["follow"], "Follow this write", { table: info.name, sequence: version.sequence, key: itemJson(key) }), link(["tables", info.name], "Table at this moment", { tab: "at", sequence: version.sequence }), back)))
    }
    place.replaceChildren(h("header", {}, h("h2", {}, "History"), dim(`${counted(versions.length, "version")}${before ? ", and older ones" : ""}`)),
      versions.length ? h("ol", { class: "timeline" }, versions.map(entry)) : state("No version of this item is in the history."),
      before ? button("Older versions", (event) => act(event, async () => (await more(), draw()))) : "")
  }
  draw()
  return place
}

async function restore(app, info, key, image, changed) {
  const now = await app.client.table(info.name).get(key)
  const text = [h("p", {}, "The item will change as follows. If it changes meanwhile, nothing is written."), diff(now, image)]
  if (!(await confirm("Restore this version?", text, "Restore", "primary"))) return
  await act(undefined, () => save(app, info, key, now, image), "Restored")
  changed()
}

class ItemChanged extends Error {
  constructor(now) {
    super("Nothing was written: the item has changed meanwhile.")
    this.now = now
  }
}

/**
 * Write `after` in the place of `before`, in a transaction, which fails with `ItemChanged` if the item is no longer `before`.
 * `before` undefined: there is no item; `after` undefined: delete it.
 */
export async function save(app, info, key, before, after) {
  await app.client.transaction(async (tx) => {
    const now = await tx.get(info.name, key)
    if (!now !== !before || !differences(before, now).next().done) throw new ItemChanged(now)
    if (!after) tx.delete(info.name, key)
    else if (!before || !differences(before, after).next().done) tx.put(info.name, after)
  })
}

/** Edit an item as JSON. If it has changed meanwhile, nothing is written, and the change is shown. */
async function edit(app, info, before, key, changed) {
  const start = before ?? Object.fromEntries(keyNames(info).map(({ name, type }) => [name, key?.[name] ?? (type === "N" ? 0 : "")]))
  const text = h("textarea", { name: "item", rows: 16, spellcheck: "false", autofocus: true, required: true }, itemJson(start, 2))
  const conflict = h("div", { role: "alert" })
  let base = before
  const parts = [field("Item, as JSON", text, 'Sets are {"$set": […]}, bytes {"$bytes": "base64"}, long numbers {"$number": "…"}.'), conflict]
  const done = await form(before ? `Edit ${keyText(key)}` : `New item in ${info.name}`, parts, "Save", async ({ item: written }) => {
    let after
    try {
      after = fromItemJson(JSON.parse(written), Decimal)
      toAttributes(after)
    } catch (error) {
      throw new Error(`This is not an item: ${error.message}`)
    }
    const own = keyOf(info, after)
    if (base && itemJson(own) !== itemJson(keyOf(info, base))) throw new Error("The key of an item cannot change; create a new item.")
    try {
      await save(app, info, own, base, after)
    } catch (error) {
      if (!(error instanceof ItemChanged)) throw error
      const { now } = error
      conflict.replaceChildren(h("h3", {}, base ? "The item has changed meanwhile" : "There is an item with this key already"), diff(base, now),
        button("Edit the present version", () => {
          base = now
          text.value = itemJson(now ?? start, 2)
          conflict.replaceChildren()
        }, { class: "small" }))
      throw new Error("Nothing was written: the item is no longer what you have edited.")
    }
    return own
  }, { class: "wide" })
  if (!done) return
  toast("Saved")
  if (changed) changed()
  else app.go(["tables", info.name, "item"], { key: itemJson(done) })
}
