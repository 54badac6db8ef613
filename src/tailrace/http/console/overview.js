/** Overview: health, rates, latency, connections, lag and disk, with the history of the last hours. */

import { ago, badge, bytes, card, chart, compact, grid, h, link, ms, number, poll, seconds, select, state } from "./ui.js"

const EVERY_MS = 3_000
const SAMPLES_MS = 10_000
const SPANS = [["900", "15 minutes"], ["3600", "1 hour"], ["21600", "6 hours"], ["86400", "24 hours"]]
const KEPT = "tailrace.span"

const rate = (value) => (value === null ? "–" : `${compact(value)}/s`)
const CHARTS = [
  ["Writes", rate, [["commands", "writes"], ["commits", "commits"]]],
  ["Commit latency", (value) => ms(value), [["commit_p99_ms", "p99"], ["commit_p50_ms", "p50"]]],
  ["Messages", rate, [["consumed", "consumed"], ["published", "published"]]],
  ["Reads", rate, [["queries", "reads"], ["requests", "requests"]]],
  ["Lag", (value) => compact(value), [["lag", "messages"], ["in_flight", "in flight"]]],
  ["Connections", (value) => number(value === null ? null : Math.round(value)), [["connections", "open"], ["live_readers", "live readers"]]],
  ["Database", bytes, [["database_bytes", "database"]]],
  ["Memory", bytes, [["memory_bytes", "memory"]]],
  ["Processor", (value) => (value === null ? "–" : `${value.toFixed(2)} cores`), [["cpu", "cores"]]],
]

export default async function overview(app) {
  const { client, signal } = app
  if (app.me.access !== null) return granted(app)
  const health = h("span", {})
  const tiles = h("div", { class: "tiles" })
  const groups = h("div")
  const about = h("span", { class: "dim" })
  const span = select(SPANS, localStorage.getItem(KEPT) ?? "3600", { "aria-label": "History" })
  const charts = CHARTS.map(([title, format, columns]) => ({ ...chart(title, format), columns }))
  let samples = { at_ms: [] }
  const live = [] // since the last sample
  const draw = () => {
    const last = samples.at_ms.at(-1) ?? 0
    while (live.length && (live[0].at_ms <= last || live.length > 1_000)) live.shift()
    for (const each of charts) {
      const values = (name) => [...(samples[name] ?? []), ...live.map((point) => point[name])]
      each.draw(values("at_ms"), each.columns.map(([name, title]) => ({ name: title, values: values(name) })))
    }
  }
  const now = async () => {
    try {
      const status = await client.status({ signal })
      if (signal.aborted) return
      live.push(pointOf(status))
      draw()
      health.replaceChildren(status.ready ? badge("healthy", "good") : badge(status.writes.status, "bad"), " ", status.writes.error ?? "")
      about.textContent = `${status.version}, ${status.build}, up ${seconds(Math.floor(status.uptime_s))}`
      tiles.replaceChildren(...figures(status))
      groups.replaceChildren(worst(status.groups))
    } catch (error) {
      if (signal.aborted) return
      if (error.status === 401 || error.status === 403) throw error
      health.replaceChildren(badge(error.status ? "failing" : "unreachable", "bad"), error.status ? ` ${error.message}` : "")
    }
  }
  const history = async () => {
    const length = Number(span.value)
    const since = Date.now() - length * 1000
    const step = Math.max(10, Math.round(length / 240 / 10) * 10)
    const { columns } = await client.samples({ sinceMs: since, stepS: step, signal }).catch(() => ({ columns: undefined }))
    if (!columns || signal.aborted) return
    samples = columns
    draw()
  }
  span.addEventListener("change", () => {
    localStorage.setItem(KEPT, span.value)
    history()
  })
  app.put(
    h("div", { class: "head" }, h("h1", {}, "Overview"), health, about, span),
    tiles,
    h("div", { class: "cards" }, charts.map((each) => each.element)),
    groups,
  )
  poll(history, SAMPLES_MS, signal)
  await poll(now, EVERY_MS, signal)
}

/** The status as a sample. */
const pointOf = ({ time, rates, commit, connections, disk, groups, memory_bytes }) => ({
  at_ms: Date.parse(time),
  ...rates,
  commit_p50_ms: commit.p50_ms,
  commit_p99_ms: commit.p99_ms,
  connections: connections.open,
  live_readers: connections.live_readers,
  lag: groups.lag,
  in_flight: groups.in_flight,
  database_bytes: disk.database_bytes,
  memory_bytes,
})

function figures({ rates, commit, connections, objects, disk, queue, groups }) {
  const tile = (value, name, kind = "") => h("div", { class: `tile ${kind}` }, h("b", {}, value), h("span", {}, name))
  const count = ({ count: value, more }) => `${number(value)}${more ? "+" : ""}`
  const full = disk.total_bytes && disk.free_bytes / disk.total_bytes < 0.05
  return [
    tile(compact(rates.commands), "writes per second"),
    tile(ms(commit.p99_ms), "commit p99"),
    tile(compact(groups.lag), "messages waiting"),
    tile(number(connections.open), "connections"),
    tile(number(queue), "writes queued"),
    tile(bytes(disk.database_bytes), "database"),
    tile(bytes(disk.free_bytes), "free on disk", full ? "bad" : ""),
    tile(link(["tables"], count(objects.tables)), "tables"),
    tile(link(["streams"], count(objects.streams)), "streams"),
    tile(link(["topics"], count(objects.topics)), "topics"),
  ]
}

function worst({ worst: rows, count, more }) {
  if (!count) return card("Consumer groups", state("No group has consumed from a topic yet."))
  return card(`Groups with the largest lag, of ${number(count)}${more ? "+" : ""}`, grid([
    { name: "Group", value: (row) => row.group_id },
    { name: "Topic", value: (row) => link(["topics", row.topic], row.topic, { tab: "groups" }) },
    { name: "Lag", class: "num", value: (row) => number(row.lag) },
    { name: "Oldest message", value: (row) => ago(row.oldest_at) },
    { name: "In flight", class: "num", value: (row) => number(row.in_flight) },
    { name: "Redelivered", class: "num", value: (row) => number(row.redelivered) },
    { name: "Lost", class: "num", value: (row) => (row.lost ? badge(number(row.lost), "bad") : "0") },
  ], rows, { label: "Groups with the largest lag" }))
}

/** The status is for principals that may see everything; others see what they were granted. */
function granted(app) {
  app.put(h("div", { class: "head" }, h("h1", {}, "Overview")),
    card(`${app.me.name} was granted`, h("ul", { class: "tree" }, app.me.access.map((pattern) => h("li", {}, h("code", {}, pattern))))),
    h("div", { class: "bar" }, link(["streams"], "Streams"), link(["tables"], "Tables"), link(["topics"], "Topics"), link(["sql"], "SQL")))
}
