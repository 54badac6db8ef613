/** Follow a write: from the row to its change record, its messages, who consumed them, the views, and the cold file. */

import { described, diff, keyText } from "./tables.js"
import { Decimal } from "./tailrace.js"
import { badge, button, card, code, dim, field, fromItemJson, grid, h, itemJson, link, number, poll, show, state, time } from "./ui.js"

const STATES = { acknowledged: "good", "in flight": "accent", waiting: "warn" }

export default async function follow(app) {
  const { query } = app
  const table = h("input", { name: "table", required: true, value: query.table ?? "", list: "tables-known", autocomplete: "off" })
  const sequence = h("input", { name: "sequence", required: true, inputmode: "numeric", value: query.sequence ?? "" })
  const key = h("input", { name: "key", value: query.key ?? "", placeholder: '{"id": "o-1"}' })
  const known = h("datalist", { id: "tables-known" })
  const found = h("div", { class: "page" })
  const onsubmit = (event) => {
    event.preventDefault()
    app.go(["follow"], { table: table.value.trim(), sequence: sequence.value.trim(), key: key.value.trim() })
  }
  app.put(h("div", { class: "head" }, h("h1", {}, "Follow a write")),
    h("form", { class: "bar", onsubmit }, field("Table", table), field("Sequence", sequence), h("div", { class: "grow" }, field("Key, if the transaction wrote several rows", key)), h("button", { class: "primary" }, "Follow"), known),
    found)
  if (query.table && query.sequence) return trace(app, found)
  await show(found, () => latest(app, known), app.signal)
}

/** Writes to choose from: the last ones of the tables with a change stream. */
async function latest(app, known) {
  const { tables } = await app.client.request("GET", "/v1/tables", { query: { limit: 200 }, signal: app.signal })
  known.append(...tables.map(({ name }) => h("option", { value: name })))
  const followed = tables.filter((table) => table.stream?.enabled)
  if (!followed.length) return state("No table has a change stream: only changes that are recorded can be followed.")
  return card("Choose a write", h("p", { class: "dim" }, "A change of a table, or a version of an item, leads here. Tables with a change stream:"),
    grid([
      { name: "Table", value: (row) => link(["tables", row.name], row.name, { tab: "changes" }) },
      { name: "Items", class: "num", value: (row) => number(row.items) },
      { name: "Topics", value: (row) => [...new Set(row.routes.map((route) => route.topic))].join(", ") || dim("none") },
    ], followed, { label: "Tables with a change stream", onrow: (row) => app.go(["tables", row.name], { tab: "changes" }) }))
}

async function trace(app, found) {
  const { table, sequence, key } = app.query
  const target = `/v1/tables/${encodeURIComponent(table)}/writes/${encodeURIComponent(sequence)}`
  const info = await described(app, table)
  const load = () => show(found, async () => drawn(app, info, await app.client.request("GET", target, { query: { key: key || undefined }, signal: app.signal })), app.signal)
  await poll(load, 2_000, app.signal)
}
