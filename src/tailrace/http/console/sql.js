/** SQL: an editor with completion, errors marked in place, results as a table and as a chart, saved queries. */

import { button, card, chart, code, counted, download, field, form, grid, h, ms, number, s, select, state } from "./ui.js"

const SAVED = "tailrace.queries"
const LAST = "tailrace.sql"
const ROWS_SHOWN = 1_000
const WORDS = "SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT OFFSET JOIN LEFT RIGHT INNER OUTER ON AS AND OR NOT NULL IS IN BETWEEN LIKE CASE WHEN THEN ELSE END DISTINCT UNION ALL WITH COUNT SUM AVG MIN MAX CAST TRUE FALSE DESC ASC INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE DROP TOPIC ALTER ADD SOURCE IF EXISTS PRIMARY KEY TEXT BIGINT DECIMAL DOUBLE BOOLEAN BLOB JSON MATERIALIZED VIEW EXPLAIN SHOW TOPICS CONSUMER GROUPS DESCRIBE CONSUME PUBLISH ACK RESET TO EARLIEST LATEST TIMESTAMP PARTITION PARTITIONS USER PASSWORD ROLE ACCESS REPLACE USING OVER ROW_NUMBER INTERVAL BEGIN COMMIT ROLLBACK TRUNCATE RETURNING CONFLICT DO NOTHING EXCLUDED INDEX COLUMN RENAME CONSTRAINT CHECK DEFAULT VARCHAR DATE UUID REFRESH ALIAS FORCE".split(" ")
const READS = /^\s*SELECT\b[^;]*;?\s*$/i
const KNOWN = new Set(WORDS)
const TOKENS = /(--[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|('(?:[^']|'')*'?)|("(?:[^"]|"")*"?)|(\d+(?:\.\d+)?)|([A-Za-z_][\w]*)|[\s\S]/g
const EXAMPLES = [
  ["Tables by size", "SELECT name, items, bytes FROM system.tables ORDER BY bytes DESC"],
  ["Lag of groups", "SELECT topic, group_id, sum(lag) AS lag, sum(in_flight) AS in_flight FROM system.topic_groups GROUP BY ALL ORDER BY lag DESC"],
  ["Streams", "SELECT path, content_type, closed FROM system.streams LIMIT 100"],
]

export default async function sql(app) {
  const { client, signal } = app
  const text = h("textarea", { spellcheck: "false", autocapitalize: "off", autocomplete: "off", "aria-label": "SQL statements", rows: 7, value: app.query.q ?? localStorage.getItem(LAST) ?? EXAMPLES[0][1] })
  const layer = h("pre", { "aria-hidden": "true" })
  const problem = h("p", { class: "error", role: "alert" })
  const took = h("span", { class: "dim", role: "status" })
  const output = h("div", { class: "page" })
  const saved = h("ul", { class: "saved" })
  let mark

  const paint = () => {
    const marked = mark && text.value === mark.text ? mark : undefined
    const parts = []
    let at = 0
    for (const match of text.value.matchAll(TOKENS)) {
      const [token, note, quoted, , digits, word] = match
      const kind = note ? "s-note" : quoted ? "s-text" : digits ? "s-number" : word && KNOWN.has(word.toUpperCase()) ? "s-word" : undefined
      let part = kind ? h("span", { class: kind }, token) : token
      if (marked && at <= marked.at && marked.at < at + token.length) part = h("mark", {}, part)
      parts.push(part)
      at += token.length
    }
    if (marked && marked.at >= at) parts.push(h("mark", {}, " "))
    layer.replaceChildren(...parts, "\n")
    text.style.height = "auto"
    text.style.height = `${Math.min(420, Math.max(140, text.scrollHeight))}px`
    layer.scrollTop = text.scrollTop
  }
  text.addEventListener("input", () => {
    localStorage.setItem(LAST, text.value)
    if (app.query.q) app.go(["sql"], {}, { quiet: true }) // the statement is no longer that of the link
    paint()
    complete.suggest()
  })
  text.addEventListener("scroll", () => (layer.scrollTop = text.scrollTop))
  const names = await loadNames(app)
  const complete = completion(text, names, paint)

  const run = async (statement = text.value, explain = false) => {
    if (!statement.trim()) return
    complete.hide()
    problem.textContent = ""
    mark = undefined
    paint()
    took.textContent = "Running…"
    runButton.disabled = true
    const began = performance.now()
    try {
      const results = await client.sql(statement, [], { signal })
      took.textContent = ms(performance.now() - began)
      output.replaceChildren(...results.map((result) => (explain ? plan(result) : shown(result))))
    } catch (error) {
      if (signal.aborted) return
      took.textContent = ""
      problem.textContent = error.message
      const { line, column, results = [] } = error.details ?? {}
      if (line && !explain) {
        const before = text.value.split("\n").slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0)
        mark = { text: text.value, at: Math.min(before + column - 1, text.value.length) }
        paint()
      }
      output.replaceChildren(...results.map(shown))
    } finally {
      runButton.disabled = false
    }
  }
  const runButton = button("Run", () => run(), { class: "primary", title: "Ctrl Enter" })
  text.addEventListener("keydown", (event) => {
    if (complete.key(event)) return
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      event.preventDefault()
      run(text.selectionStart !== text.selectionEnd ? text.value.slice(text.selectionStart, text.selectionEnd) : text.value)
    }
  })

  const drawSaved = () => {
    const own = queries()
    const use = (statement) => {
      text.value = statement
      text.dispatchEvent(new Event("input"))
      complete.hide()
      text.focus()
    }
    const rows = [...Object.entries(own).map(([name, statement]) => [name, statement, true]), ...EXAMPLES]
    saved.replaceChildren(...rows.map(([name, statement, mine]) => h("li", {}, button(name, () => use(statement), { class: "plain", title: statement }), mine && button("Delete", () => {
      delete own[name]
      localStorage.setItem(SAVED, JSON.stringify(own))
      drawSaved()
    }, { class: "plain small", "aria-label": `Delete ${name}` }))))
  }
  const keep = () => form("Save query", field("Name", h("input", { name: "name", required: true, autofocus: true })), "Save", ({ name }) => {
    localStorage.setItem(SAVED, JSON.stringify({ ...queries(), [name]: text.value }))
    drawSaved()
  })
  const explain = button("Explain", () => run(`EXPLAIN ${text.value}`, true), { title: "Show how the statement would be run" })
  drawSaved()
  app.put(
    h("div", { class: "head" }, h("h1", {}, "SQL"), took),
    h("div", { class: "two sql-top" },
      h("div", { class: "page" }, h("div", { class: "sql-edit" }, layer, text), complete.element, problem, h("div", { class: "bar center" }, runButton, explain, button("Save", keep), h("span", { class: "dim keys" }, "Ctrl Enter runs; Ctrl Space completes"))),
      card("Queries", saved)),
    output,
  )
  paint()
  text.focus()
  // A link may come from anyone: what it names is run only if it cannot write.
  if (READS.test(app.query.q ?? "")) await run()
  else if (app.query.q) took.textContent = "This statement came with the link. It has not been run."
}

const queries = () => {
  try {
    return JSON.parse(localStorage.getItem(SAVED) ?? "{}")
  } catch {
    return {}
  }
}

/** What can be named in a statement. */
async function loadNames({ client, signal }) {
  const names = new Map(WORDS.map((word) => [word, "keyword"]))
  for (const name of ["tables", "streams", "topics", "topic_groups", "topic_partitions", "topic_offsets", "topic_routes", "users", "pipelines"]) names.set(`system.${name}`, "system")
  const [tables, topics] = await Promise.all([client.tables({ limit: 200, signal }).catch(() => undefined), client.topics({ signal }).catch(() => [])])
  for (const table of tables?.tables ?? []) {
    names.set(table.name, "table")
    for (const column of [...table.columns, table.partition_key, table.sort_key].filter(Boolean)) names.set(column.name, "column")
  }
  for (const { name } of topics) names.set(name, "topic")
  return names
}

function completion(text, names, changed) {
  const element = h("ul", { class: "complete", role: "listbox", "aria-label": "Completions", hidden: true })
  let found = []
  let at = 0
  let word = ""
  const hide = () => {
    element.hidden = true
    found = []
  }
  const take = (name) => {
    const end = text.selectionStart
    text.setRangeText(name, end - word.length, end, "end")
    hide()
    changed()
    text.focus()
  }
  const draw = () => {
    element.replaceChildren(...found.map(([name, kind], index) => h("li", { role: "option", "aria-selected": index === at, onmousedown: (event) => (event.preventDefault(), take(name)) }, h("span", {}, name), h("small", {}, kind))))
    element.children[at]?.scrollIntoView({ block: "nearest" })
  }
  const suggest = (forced = false) => {
    const before = text.value.slice(0, text.selectionStart)
    word = /[\w.]*$/.exec(before)[0]
    if (!forced && word.length < 2) return hide()
    const wanted = word.toLowerCase()
    found = [...names].filter(([name]) => name.toLowerCase().startsWith(wanted) && name !== word).sort(([, a], [, b]) => (a === "keyword") - (b === "keyword")).slice(0, 30)
    if (!found.length || (found.length === 1 && found[0][0].toLowerCase() === wanted)) return hide()
    at = 0
    draw()
    element.hidden = false
    const lines = before.split("\n")
    element.style.marginTop = `${Math.min(lines.length * 20 + 12, text.clientHeight) - text.clientHeight - 12}px`
    element.style.marginLeft = `${Math.min((lines.at(-1).length - word.length) * 7.8 + 8, Math.max(8, text.clientWidth - 220))}px`
  }
  text.addEventListener("blur", hide)
  const key = (event) => {
    if (event.ctrlKey && event.code === "Space") {
      event.preventDefault()
      suggest(true)
      return true
    }
    if (element.hidden) return false
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key]
    if (step) at = (at + step + found.length) % found.length
    else if (event.key === "Escape") hide()
    else if ((event.key === "Enter" || event.key === "Tab") && !event.ctrlKey && !event.metaKey) take(found[at][0])
    else return false
    event.preventDefault()
    if (step) draw()
    return true
  }
  return { element, suggest, key, hide }
}

// -- results

const numeric = (type) => /INT|DECIMAL|DOUBLE|FLOAT|NUMERIC|REAL/i.test(type)
const textOf = (value) => (value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value))

function shown(result) {
  const { columns, rows } = result
  if (!columns.length) return card(undefined, h("p", {}, code(result.statement), ` ${result.message}`))
  const body = h("div")
  const asTable = () => {
    const head = h("thead", {}, h("tr", {}, columns.map(({ name, type }) => h("th", { scope: "col", class: numeric(type) && "num", title: type }, name))))
    const cells = (row) => columns.map(({ name, type }) => h("td", { class: `${numeric(type) ? "num" : ""} ${row[name] === null ? "null" : ""}`, title: textOf(row[name]).length > 60 ? textOf(row[name]).slice(0, 2000) : undefined }, row[name] === null ? "null" : textOf(row[name]).slice(0, 300)))
    body.replaceChildren(rows.length ? h("div", { class: "grid", role: "region", tabindex: "0", "aria-label": "Result" }, h("table", {}, head, h("tbody", {}, rows.slice(0, ROWS_SHOWN).map((row) => h("tr", {}, cells(row)))))) : state("No rows."), rows.length > ROWS_SHOWN ? state(`The first ${number(ROWS_SHOWN)} of ${number(rows.length)} rows; download has all.`) : "")
  }
  const asChart = () => {
    const numbers = columns.filter(({ type }) => numeric(type)).map(({ name }) => name)
    const x = select(columns.map(({ name }) => name), columns.find(({ name }) => !numbers.includes(name))?.name ?? columns[0].name, { "aria-label": "Across" })
    const y = select(numbers, numbers.find((name) => name !== x.value) ?? numbers[0], { "aria-label": "Up" })
    const place = h("div")
    const draw = () => place.replaceChildren(plotted(rows.slice(0, 500), x.value, y.value))
    x.addEventListener("change", draw)
    y.addEventListener("change", draw)
    draw()
    body.replaceChildren(h("div", { class: "bar center" }, h("span", { class: "dim" }, "Across"), x, h("span", { class: "dim" }, "Up"), y), place)
  }
  const chartable = rows.length > 1 && columns.some(({ type }) => numeric(type))
  const kinds = [button("Table", () => pick(0), { class: "small", "aria-pressed": "true" }), chartable && button("Chart", () => pick(1), { class: "small", "aria-pressed": "false" })].filter(Boolean)
  const pick = (at) => {
    kinds.forEach((each, index) => each.setAttribute("aria-pressed", index === at))
    ;[asTable, asChart][at]()
  }
  const csv = () => {
    const quoted = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value)
    const lines = [columns.map(({ name }) => name), ...rows.map((row) => columns.map(({ name }) => textOf(row[name])))]
    download("result.csv", "text/csv", lines.map((line) => line.map(quoted).join(",")).join("\r\n") + "\r\n")
  }
  asTable()
  return h("section", { class: "card" }, h("header", {}, h("h2", {}, counted(rows.length, "row")), kinds, button("CSV", csv, { class: "small" }), button("JSON", () => download("result.json", "application/json", JSON.stringify(rows, null, 1)), { class: "small" })), body)
}

const plan = (result) => card("Plan", grid(result.columns.map(({ name }) => ({ name, value: (row) => textOf(row[name]) })), result.rows))

/** Lines over time, bars over everything else. */
function plotted(rows, x, y) {
  const times = rows.map((row) => (typeof row[x] === "number" ? row[x] : Date.parse(row[x])))
  const dates = rows.every((row, at) => typeof row[x] === "string" && /^\d{4}-\d\d-\d\d/.test(row[x]) && !Number.isNaN(times[at]))
  if (dates) {
    const order = rows.map((row, at) => [times[at], Number(row[y])]).sort(([a], [b]) => a - b)
    const { element, draw } = chart(y, number, { height: 220 })
    draw(order.map(([at]) => at), [{ name: y, values: order.map(([, value]) => value) }])
    return element
  }
  const shownRows = rows.slice(0, 40)
  const top = Math.max(...shownRows.map((row) => Math.abs(Number(row[y])) || 0)) || 1
  const height = shownRows.length * 24
  const bars = shownRows.map((row, at) => [
    s("text", { x: 200, y: at * 24 + 16, "text-anchor": "end" }, textOf(row[x]).slice(0, 28)),
    s("rect", { x: 208, y: at * 24 + 5, width: Math.max(1, (Math.abs(Number(row[y])) / top) * 500), height: 14, rx: 2 }),
    s("text", { x: 214 + (Math.abs(Number(row[y])) / top) * 500, y: at * 24 + 16 }, textOf(row[y])),
  ])
  const svg = s("svg", { class: "plot bars", viewBox: `0 0 800 ${height}`, role: "img", "aria-label": `${y} by ${x}` }, bars.flat())
  return h("div", {}, svg, rows.length > 40 && state("The first 40 rows."))
}
