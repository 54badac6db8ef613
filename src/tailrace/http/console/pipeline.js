/** Pipeline: jobs, views with their SQL and freshness, and cold storage by table. */

import { act, ago, badge, button, card, code, dialog, dim, facts, failure, grid, h, jsonView, link, loading, number, poll, state, tabs, time } from "./ui.js"

const KINDS = { running: "good", idle: "good", streaming: "good", failed: "bad", failing: "bad", stopped: "warn", paused: "warn", ready: "good", current: "good", live: "good" }
const status = (text) => (text ? badge(text, KINDS[text] ?? "") : dim("–"))

export default async function pipeline(app) {
  const { client, signal } = app
  const tab = app.query.tab ?? "jobs"
  const place = h("div", { class: "page" })
  app.put(h("div", { class: "head" }, h("h1", {}, "Pipeline")), tabs(["pipeline"], {}, [["jobs", "Jobs"], ["views", "Views"], ["cold", "Cold storage"]], tab, "Parts of the pipeline"), place)
  const parts = { jobs, views, cold }
  const rates = new Map()
  let shown = false
  const load = async () => {
    try {
      const made = await parts[tab](client, signal, rates, app, load)
      if (signal.aborted) return
      shown = true
      place.replaceChildren(...[made].flat().filter(Boolean))
    } catch (error) {
      if (!signal.aborted && !shown) place.replaceChildren(failure(error, load))
    }
  }
  place.append(loading())
  await poll(load, 5_000, signal)
}

/** The state of a job. One that is paused while its program has not said so yet is about to stop, or does not run. */
function jobState(row) {
  if (!row.paused) return status(row.state)
  if (row.state === "paused") return status("paused")
  return [row.state === "running" ? badge("pausing", "warn") : [status(row.state), " ", badge("paused", "warn")]]
}

/** Whether the job can be paused: it is one of the pipeline, and the user may. */
const pausable = (app, row) => app.can("jobs") && row.kind !== "consumer"

function pausing(app, row, load) {
  if (!pausable(app, row)) return ""
  const done = row.paused ? "Resumed" : "Paused"
  return button(row.paused ? "Resume" : "Pause", (event) => act(event, () => (row.paused ? app.client.resumeJob(row.name) : app.client.pauseJob(row.name)), `${done} ${row.name}`).then(load), { class: "small", "aria-label": `${row.paused ? "Resume" : "Pause"} ${row.name}` })
}

async function jobs(client, signal, rates, app, load) {
  const rows = await client.jobs({ signal })
  const now = performance.now()
  const perSecond = (row) => {
    const before = rates.get(row.name)
    rates.set(row.name, [now, row.rows])
    return before && now > before[0] ? `${number(Math.max(0, Math.round(((row.rows - before[1]) / (now - before[0])) * 1000)))}/s` : dim("–")
  }
  const detail = (row) => dialog(row.name, () => h("div", { class: "body" }, facts([["Kind", row.kind], ["Source", row.source || "–"], ["Target", row.target || "–"], ["State", jobState(row)], row.paused && ["Paused", [time(row.paused_at), ` by ${row.paused_by}`]], ["Created", time(row.created_at)], ["Last report", time(row.updated_at)]]), row.message && h("p", { class: "error" }, row.message), h("h3", {}, "Definition"), jsonView(row.definition ?? {}), h("h3", {}, "Positions, by log"), jsonView(row.positions)), { class: "wide" })
  return [
    grid([
      { name: "Job", class: "name", value: (row) => [h("b", { title: row.name }, row.name), " ", dim(row.kind)] },
      { name: "State", value: jobState },
      ...(rows.some((row) => pausable(app, row)) ? [{ name: "", value: (row) => pausing(app, row, load) }] : []),
      { name: "From, to", class: "wrap", value: (row) => [row.source || dim("–"), dim(" → "), row.target || dim("–")] },
      { name: "Lag", class: "num", value: (row) => number(row.lag ?? null) },
      { name: "Rows", class: "num", value: (row) => number(row.rows) },
      { name: "Rate", class: "num", value: perSecond },
      { name: "Last report", value: (row) => ago(row.updated_at) },
      { name: "Message", class: "wrap", value: (row) => (row.message ? h("span", { class: row.state === "failed" ? "error" : "dim" }, row.message.slice(0, 300)) : row.paused ? dim(`paused by ${row.paused_by}`) : "") },
    ], rows, { label: "Jobs", onrow: detail, empty: "No jobs are registered: tailrace pipeline run starts those of pipeline.toml." }),
    rows.length > 0 && dim("Jobs run in a program of their own. One that is paused finishes its batch, and waits until it is resumed."),
  ]
}

async function views(client, signal, rates, app) {
  const { views: rows } = await client.request("GET", "/v1/views", { signal })
  if (!rows.length) return state("There are no materialized views. CREATE MATERIALIZED VIEW makes one.")
  return rows.map((view) => h("section", { class: "card" },
    h("header", {}, h("h2", {}, link(["tables", view.name], view.name)), status(view.phase), view.stale ? badge(view.stale, "warn") : badge("fresh", "good"), status(view.state)),
    h("pre", { class: "json", tabindex: "0", "aria-label": `SQL of ${view.name}` }, view.sql),
    view.message && h("p", { class: "error" }, view.message),
    view.warnings.map((text) => h("p", { class: "dim" }, text)),
    facts([["Rows", number(view.items)], ["Records applied", number(view.rows)], ["Strategy", view.strategy || "–"], ["Key", view.keys.map(([name]) => name).join(", ") || "–"], ["Columns", view.columns.map(([name, type]) => `${name} ${type}`).join(", ") || "–"], ["Refresh", view.refresh ? number(view.refresh) : "–"]]),
    view.explained.length > 0 && h("details", {}, h("summary", {}, "How it is maintained"), h("ul", {}, view.explained.map((line) => h("li", {}, line)))),
    h("p", {}, link(["sql"], "Query it", { q: `SELECT * FROM ${view.name} LIMIT 100` }))))
}

async function cold(client, signal) {
  const found = await client.request("GET", "/v1/cold", { signal })
  if (!found.url) return state("This server has no cold storage. The setting cold_url names a place for it.")
  const rows = found.places.flatMap((place) => place.logs.map((log) => ({ ...log, place: place.name, generation: place.generation })))
  return [
    card("Cold storage", facts([["Place", code(found.url)], ["Database", code(found.database)], ["Tables of cold storage", number(found.places.length)]])),
    grid([
      { name: "Cold table", value: (row) => row.place },
      { name: "Table", value: (row) => (row.table ? link(["tables", row.table]) : dim("–")) },
      { name: "First position", class: "num", value: (row) => number(row.start) },
      { name: "Tiered up to", class: "num", value: (row) => number(row.tiered) },
      { name: "End of the log", class: "num", value: (row) => number(row.next) },
      { name: "Not yet tiered", class: "num", value: (row) => number(row.next - row.tiered) },
      { name: "Generation", class: "num", value: (row) => number(row.generation) },
    ], rows, { label: "Logs in cold storage", empty: "No log is kept in cold storage yet." }),
  ]
}
