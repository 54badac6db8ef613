/** Follow a write: from the row to its change record, its messages, who consumed them, the views, and the cold file. */

import { diff, keyText } from "./tables.js"
import { Decimal } from "./tailrace.js"
import { ago, badge, card, code, dim, failure, field, fromItemJson, grid, h, itemJson, link, loading, number, poll, show, state, time } from "./ui.js"

const STATES = { acknowledged: "good", in_flight: "accent", waiting: "warn" }
const EVENTS = { INSERT: "good", MODIFY: "accent", REMOVE: "bad" }

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
  const { tables } = await app.client.tables({ limit: 200, signal: app.signal })
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
  const row = key ? fromItemJson(JSON.parse(key), Decimal) : undefined
  found.replaceChildren(loading())
  let shown = ""
  await poll(async () => {
    try {
      const write = await app.client.table(table).trace(Number(sequence), { key: row, signal: app.signal })
      const now = JSON.stringify(write)
      if (app.signal.aborted || now === shown) return
      shown = now
      found.replaceChildren(...drawn(write))
    } catch (error) {
      if (!app.signal.aborted && !shown) found.replaceChildren(failure(error, app.reload))
    }
  }, 2_000, app.signal)
}

/** The stations of a write, in the order in which it passes them. */
function drawn(write) {
  const { records } = write
  const [first] = records
  const station = (title, done, ...content) => h("li", { class: done ? "" : "waiting" }, h("header", {}, h("h3", {}, title)), h("div", { class: "body" }, content))
  return [
    h("div", { class: "tiles follow-tiles" }, [
      [first ? keyText(first.keys) : `sequence ${write.sequence}`, `in ${write.table}`],
      [write.by || "–", "wrote it"],
      [number(write.messages.length), "messages"],
      [`${write.messages.flatMap((each) => each.groups).filter((group) => group.state === "acknowledged").length} of ${write.messages.flatMap((each) => each.groups).length}`, "deliveries acknowledged"],
      [`${write.jobs.filter((job) => job.applied).length} of ${write.jobs.length}`, "jobs and views past it"],
    ].map(([value, text]) => h("div", { class: "tile" }, h("b", { title: value }, value), h("span", {}, text)))),
    h("ol", { class: "timeline card" },
      station("The write", true, h("p", {}, time(write.at), " by ", h("b", {}, write.by || "–"), ", sequence ", number(write.sequence)),
        records.map((record) => [h("div", { class: "bar center" }, badge(record.event, EVENTS[record.event]), link(["tables", write.table, "item"], keyText(record.keys), { key: itemJson(record.keys) })), record.old || record.new ? diff(record.old, record.new) : dim("The change stream keeps keys only.")])),
      station("The change record", true, h("p", {}, "In ", link(["tables", write.table], `the changes of ${write.table}`, { tab: "changes" }), `, log ${write.kept.log}, position ${number(write.kept.position)}: in the same transaction as the row. `, kept(write.kept))),
      station("Its messages", write.messages.length > 0, write.messages.length ? write.messages.map(message) : dim("No route of the table took this change.")),
      station("Jobs and views", write.jobs.length > 0 && write.jobs.every((job) => job.applied), write.jobs.length ? grid([
        { name: "Job", value: (row) => row.name },
        { name: "Kind", value: (row) => row.kind },
        { name: "This write", value: (row) => (row.applied ? badge("applied", "good") : badge("not yet", "warn")) },
        { name: "Position", class: "num", value: (row) => number(row.position) },
        { name: "State", value: (row) => row.state },
        { name: "Last report", value: (row) => ago(row.updated_at) },
      ], write.jobs, { label: "Jobs and views that read the table" }) : dim("No job reads this table."), write.jobs.filter((job) => job.moved).map(moved)),
      station("Cold storage", !!write.kept.cold_table, write.kept.cold_table ? [h("p", {}, "In the cold table ", code(write.kept.cold_table), "."), (write.kept.files ?? []).map((file) => h("p", {}, code(file)))] : dim("Not in cold storage: the database has it."))),
    !write.complete && dim("There are more records or messages of this transaction."),
  ].filter(Boolean)
}

/** The rows of a view that the batch with this write has moved. */
function moved({ name, moved: { at, alone, rows, more } }) {
  const rest = alone ? "" : " The batch had other changes, too."
  if (!rows.length) return h("p", {}, "In ", link(["tables", name]), " no row has changed: ", time(at), rest)
  return [
    h("p", {}, "Rows of ", link(["tables", name]), ` that ${alone ? "this write has moved" : "its batch has moved"}, `, time(at), ":", rest),
    rows.map((row) => h("div", {}, h("div", { class: "bar center" }, badge(row.event, EVENTS[row.event]), link(["tables", name, "item"], keyText(row.keys), { key: itemJson(row.keys) })), row.old || row.new ? diff(row.old, row.new) : "")),
    more && dim("There are more rows."),
  ]
}

const kept = (where) => [where.hot && badge("hot", "warn"), " ", where.cold_table && badge("cold", "accent")]

function message(each) {
  const title = h("div", { class: "bar center" }, link(["topics", each.topic], each.topic, { tab: "messages", partition: each.partition_id }), dim(`partition ${each.partition_id}, offset ${number(each.offset)}, ${each.op}, payload ${each.payload_mode}`), kept(each.kept))
  if (!each.groups.length) return [title, dim("No group consumes this topic yet.")]
  return [title, grid([
    { name: "Group", value: (row) => link(["topics", each.topic], row.group_id, { tab: "groups" }) },
    { name: "State", value: (row) => badge(row.state.replace("_", " "), STATES[row.state]) },
    { name: "Consumed", value: (row) => (row.acknowledged_at ? time(row.acknowledged_at) : row.state === "acknowledged" ? dim("not on record") : dim("–")) },
    { name: "Consumer", value: (row) => row.consumer_id || dim("–") },
    { name: "User", value: (row) => row.acknowledged_by ?? dim("–") },
    { name: "Attempt", class: "num", value: (row) => row.attempt || dim("–") },
    { name: "Lease until", value: (row) => (row.until ? time(row.until) : dim("–")) },
  ], each.groups, { label: `Groups of ${each.topic}` })]
}
