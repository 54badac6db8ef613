/** The parts that pages are made of. Text enters the document as text, never as HTML. */

// -- elements

/** An element: `h("button", { class: "primary", onclick: save }, "Save")`. Children may be nodes, text, lists or nothing. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children)
}

export function s(tag, props, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children)
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value)
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value
    else element.setAttribute(name, value === true ? "" : String(value))
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false))
  return element
}

export const icon = (name) => s("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, s("path", { d: ICONS[name] ?? "" }))

const ICONS = {
  overview: "M2 13h12M3.5 10.5l3-4 2.5 2 3.5-5",
  streams: "M2 4.5h12M2 8h9M2 11.5h6",
  tables: "M2 3h12v10H2zM2 6.5h12M6 6.5V13",
  topics: "M3 8h4m0 0 4-4m-4 4 4 4M13.5 4h-1m1 8h-1",
  follow: "M3 3v5a3 3 0 0 0 3 3h7m-3-3 3 3-3 3",
  sql: "M3 4l4 4-4 4M8.5 12H13",
  pipeline: "M2 5h4v6H2zM10 5h4v6h-4zM6 8h4",
  access: "M8 8a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM3 13.5c.5-2.5 2.5-3.5 5-3.5s4.5 1 5 3.5",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.5 10.5 14 14",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5z",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.5m0 11V15M1 8h1.5m11 0H15M3 3l1 1m8 8 1 1m0-10-1 1m-8 8-1 1",
  close: "M4 4l8 8M12 4l-8 8",
}

export const button = (text, onclick, props = {}) => h("button", { type: "button", onclick, ...props }, text)

/** A link to a page of the console. */
export const link = (parts, text, query, props) => h("a", { href: href(parts, query), ...props }, text ?? parts.at(-1))

export function href(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "")
  const search = new URLSearchParams(given).toString()
  return `#/${parts.map(encodeURIComponent).join("/")}${search && `?${search}`}`
}

let fields = 0
/** An input with its label; `input` is an element. */
export function field(label, input, hint) {
  input.id ||= `field-${++fields}`
  const about = hint && h("small", { id: `${input.id}-hint` }, hint)
  if (about) input.setAttribute("aria-describedby", about.id)
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input, about)
}

/** A choice. Options are values, or pairs of a value and a text. */
export function select(options, value, props = {}) {
  const all = options.map((option) => (Array.isArray(option) ? option : [option, option]))
  return h("select", props, all.map(([each, text]) => h("option", { value: each, selected: each === value }, text)))
}

// -- text

const NUMBER = new Intl.NumberFormat("en")
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 })
export const number = (value) => (value === null || value === undefined ? "–" : NUMBER.format(value))
export const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`
export const compact = (value) => (value === null || value === undefined ? "–" : value < 10_000 ? NUMBER.format(Math.round(value * 10) / 10) : COMPACT.format(value))

export function bytes(value) {
  if (value === null || value === undefined) return "–"
  let at = 0
  while (value >= 1024 && at < 5) {
    value /= 1024
    at++
  }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${["B", "KB", "MB", "GB", "TB", "PB"][at]}`
}

export function seconds(value) {
  if (value === null || value === undefined) return "–"
  const units = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]]
  const at = units.findIndex(([, size]) => value >= size)
  if (at < 0) return `${Math.round(value * 1000)} ms`
  const [unit, size] = units[at]
  const rest = units[at + 1] && Math.floor((value % size) / units[at + 1][1])
  return `${Math.floor(value / size)} ${unit}${rest ? ` ${rest} ${units[at + 1][0]}` : ""}`
}

export const ms = (value) => (value === null || value === undefined ? "–" : value < 10 ? `${value.toFixed(2)} ms` : value < 1000 ? `${value.toFixed(0)} ms` : seconds(value / 1000))

const two = (value) => String(value).padStart(2, "0")
export const toMs = (value) => (typeof value === "number" ? value : Date.parse(value))

/** A moment, in the time of this machine, with all of it in the title. */
export function time(value) {
  if (value === null || value === undefined || value === "") return h("span", { class: "dim" }, "–")
  const at = new Date(toMs(value))
  return h("time", { datetime: at.toISOString(), title: at.toISOString() }, `${day(at)} ${clock(at)}`)
}
const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`
export const clock = (at) => `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`

export function ago(value) {
  if (value === null || value === undefined || value === "") return h("span", { class: "dim" }, "–")
  const at = new Date(toMs(value))
  const past = (Date.now() - at) / 1000
  return h("time", { datetime: at.toISOString(), title: at.toISOString() }, past < 1 ? "now" : past < 0 ? `in ${seconds(-past)}` : `${seconds(Math.floor(past)).replace(/ \d+ \w+$/, "")} ago`)
}

export function toBase64(data) {
  return btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(""))
}

/** JSON of an item, in which sets, bytes and long numbers keep their type: `{"$set": [...]}`, `{"$bytes": ...}`. */
export const itemJson = (value, indent) => JSON.stringify(typed(value), null, indent)

function typed(value) {
  if (value instanceof Set) return { $set: [...value].map(typed) }
  if (value instanceof Uint8Array) return { $bytes: toBase64(value) }
  if (Array.isArray(value)) return value.map(typed)
  if (value && typeof value === "object") {
    if (typeof value.text === "string" && value.constructor.name === "Decimal") return { $number: value.text }
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, typed(each)]))
  }
  return value
}

export function fromItemJson(value, Decimal) {
  if (Array.isArray(value)) return value.map((each) => fromItemJson(each, Decimal))
  if (!value || typeof value !== "object") return value
  const names = Object.keys(value)
  if (names.length === 1 && names[0] === "$set") return new Set(value.$set.map((each) => fromItemJson(each, Decimal)))
  if (names.length === 1 && names[0] === "$bytes") return Uint8Array.from(atob(value.$bytes), (each) => each.charCodeAt(0))
  if (names.length === 1 && names[0] === "$number") return new Decimal(value.$number)
  return Object.fromEntries(names.map((name) => [name, fromItemJson(value[name], Decimal)]))
}

/** Text with the tokens of JSON coloured. */
export function jsonView(value, props = {}) {
  const text = typeof value === "string" ? value : itemJson(value, 2) ?? "undefined"
  const parts = []
  let last = 0
  if (text.length < 200_000) {
    for (const match of text.matchAll(/("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g)) {
      if (match.index > last) parts.push(text.slice(last, match.index))
      const kind = match[1] ? (match[2] ? "j-name" : "j-text") : match[3] ? "j-word" : "j-number"
      parts.push(h("span", { class: kind }, match[1] ?? match[0]), match[2] ?? "")
      last = match.index + match[0].length
    }
  }
  parts.push(text.slice(last))
  return h("pre", { class: "json", tabindex: "0", ...props }, parts)
}

export const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text)
export const dim = (text) => h("span", { class: "dim" }, text)
export const code = (text) => h("code", {}, text)

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text)
    toast("Copied")
  } catch {
    toast("The browser does not allow this page to copy", "bad")
  }
}

export function download(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }))
  h("a", { href: url, download: name }).click()
  setTimeout(() => URL.revokeObjectURL(url), 10_000)
}

// -- messages to the user

export function toast(text, kind = "") {
  const item = h("div", { class: `toast ${kind}` }, text, button(icon("close"), () => item.remove(), { class: "plain", "aria-label": "Dismiss" }))
  const all = document.getElementById("toasts")
  all.append(item)
  while (all.children.length > 4) all.firstChild.remove()
  setTimeout(() => item.remove(), kind === "bad" ? 12_000 : 4_000)
}

export const state = (text, ...more) => h("div", { class: "state", role: "status" }, h("p", {}, text), more)
export const loading = () => h("div", { class: "state", role: "status" }, h("p", { class: "busy" }, "Loading…"))

export function failure(error, retry) {
  const text = error?.status === 403 ? "You have no permission for this." : "This could not be loaded."
  return h("div", { class: "state bad", role: "alert" }, h("p", {}, h("b", {}, text)), h("p", {}, error?.message ?? String(error)), retry && button("Try again", retry))
}

/** Show what `load` returns in `place`; while it loads, and if it fails, that. */
export async function show(place, load, signal) {
  if (!place.childElementCount) place.replaceChildren(loading())
  try {
    const made = await load()
    if (signal?.aborted) return
    place.replaceChildren(...[made].flat(Infinity).filter(Boolean))
  } catch (error) {
    if (signal?.aborted) return
    place.replaceChildren(failure(error, () => show(place, load, signal)))
  }
}

/** Run an action of the user: its button is disabled meanwhile, an error is shown. */
export async function act(element, action, done) {
  const target = element?.currentTarget ?? element
  if (target) target.disabled = true
  try {
    const result = await action()
    if (done) toast(done)
    return result
  } catch (error) {
    if (error?.name !== "AbortError") toast(error?.message ?? String(error), "bad")
    return undefined
  } finally {
    if (target) target.disabled = false
  }
}

/** Call `work` at once and then every `everyMs`, until the page is left; not while it is hidden. */
export function poll(work, everyMs, signal) {
  let timer
  const again = () => {
    if (!signal.aborted) timer = setTimeout(next, everyMs)
  }
  const next = () => (document.hidden ? Promise.resolve() : work()).catch(() => {}).then(again) // the page shows what it had
  signal.addEventListener("abort", () => clearTimeout(timer), { once: true })
  return work().then(again)
}

// -- dialogs

/** A dialog; `build(close)` returns its content. It resolves to what `close` gets. */
export function dialog(title, build, props = {}) {
  return new Promise((resolve) => {
    let result
    const close = (value) => {
      result = value
      box.close()
    }
    const head = h("header", {}, h("h2", { id: "dialog-title" }, title), button(icon("close"), () => close(), { class: "plain", "aria-label": "Close" }))
    const box = h("dialog", { "aria-labelledby": "dialog-title", ...props }, head)
    box.append(...[build(close)].flat(Infinity).filter(Boolean))
    box.addEventListener("close", () => {
      box.remove()
      resolve(result)
    })
    let written = false // what was written into a form is not lost by a click beside it, or by one Esc
    box.addEventListener("input", (event) => (written ||= !!event.target.form))
    box.addEventListener("mousedown", (event) => event.target === box && !written && close())
    box.addEventListener("cancel", (event) => {
      if (!written || event.target !== box) return
      event.preventDefault()
      written = false
      box.append(h("p", { class: "again", role: "status" }, "Esc again discards what you have written."))
    })
    document.body.append(box)
    box.showModal()
    ;(box.querySelector("[autofocus]") ?? box.querySelector("form input, form select, form textarea"))?.focus()
  })
}

export const confirm = (title, text, action, kind = "danger") =>
  dialog(title, (close) => [
    h("div", { class: "body" }, text),
    h("footer", {}, button("Cancel", () => close(false)), button(action, () => close(true), { class: kind, autofocus: true })),
  ])

/** A dialog with a form; `submit(values)` may fail, and is shown then. Fields are made by `field`, inputs have names. */
export function form(title, parts, action, submit, props) {
  return dialog(title, (close) => {
    const error = h("p", { class: "error", role: "alert" })
    const send = h("button", { class: "primary" }, action)
    const onsubmit = async (event) => {
      event.preventDefault()
      send.disabled = true
      error.textContent = ""
      try {
        close((await submit(Object.fromEntries(new FormData(event.target)), close)) ?? true)
      } catch (problem) {
        error.textContent = problem?.message ?? String(problem)
      } finally {
        send.disabled = false
      }
    }
    return h("form", { onsubmit }, h("div", { class: "body" }, parts, error), h("footer", {}, button("Cancel", () => close()), send))
  }, props)
}

// -- lists

/** A table of rows. A column: `{ name, value(row), class, title }`. */
export function grid(columns, rows, { empty = "There is nothing here yet.", label, onrow, rowClass } = {}) {
  if (!rows.length) return state(empty)
  const body = h("tbody", {}, rows.map((row) => gridRow(columns, row, { onrow, rowClass })))
  return h("div", { class: "grid", role: "region", tabindex: "0", "aria-label": label ?? "Rows" }, h("table", { class: onrow && "rows" }, gridHead(columns), body))
}

const gridHead = (columns) => h("thead", {}, h("tr", {}, columns.map((column) => h("th", { class: column.class, scope: "col", title: column.title }, column.name))))
const gridRow = (columns, row, { onrow, rowClass }) =>
  h("tr", { class: rowClass?.(row), ...(onrow && { onclick: (event) => !event.target.closest("a,button,input,select") && onrow(row) }) },
    columns.map((column) => h("td", { class: column.class }, column.value(row))))

const GRID_ROW = 30
const GRID_MARGIN = 10

/**
 * A table of any number of rows of one height, of which those in view are in the document. `set(columns, rows)` shows rows;
 * `atEnd()` is called when the user scrolls near the end of them.
 */
export class LongGrid {
  #columns = []
  #rows = []
  #drawn = new Map() // elements by the number of the row
  #height = GRID_ROW
  #frame = 0
  #above = filler()
  #below = filler()

  constructor({ label, onrow, atEnd }) {
    this.onrow = onrow
    this.atEnd = atEnd
    this.body = h("tbody")
    this.table = h("table", { class: "rows" }, h("thead"), this.body)
    this.element = h("div", { class: "grid long", role: "region", tabindex: "0", "aria-label": label, onscroll: () => this.#scrolled() }, this.table)
    new ResizeObserver(() => this.#draw()).observe(this.element)
  }

  set(columns, rows) {
    const shape = (each) => JSON.stringify(each.map(({ name, class: kind }) => [name, kind]))
    if (rows !== this.#rows || shape(columns) !== shape(this.#columns)) {
      this.table.replaceChild(gridHead(columns), this.table.tHead)
      this.body.replaceChildren()
      this.#drawn.clear()
    }
    this.#columns = columns
    this.#rows = rows
    this.table.setAttribute("aria-rowcount", rows.length + 1)
    this.#draw()
  }

  #scrolled() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0
      this.#draw()
      const { scrollTop, clientHeight, scrollHeight } = this.element
      if (scrollTop && scrollTop + 2 * clientHeight >= scrollHeight) this.atEnd?.()
    })
  }

  /** Rows that stay are not moved, so that they keep the focus. */
  #draw() {
    if (!this.#rows.length) return
    const [shown] = this.#drawn.values()
    this.#height = shown?.getBoundingClientRect().height || this.#height
    const { scrollTop, clientHeight } = this.element
    const first = Math.max(0, Math.floor(scrollTop / this.#height) - GRID_MARGIN)
    const end = Math.min(this.#rows.length, Math.ceil((scrollTop + clientHeight) / this.#height) + GRID_MARGIN)
    for (const [at, row] of this.#drawn) {
      if (at >= first && at < end) continue
      row.remove()
      this.#drawn.delete(at)
    }
    let next = null
    for (let at = end - 1; at >= first; at--) {
      let row = this.#drawn.get(at)
      if (!row) {
        row = gridRow(this.#columns, this.#rows[at], this)
        row.setAttribute("aria-rowindex", at + 2)
        this.#drawn.set(at, row)
        this.body.insertBefore(row, next ?? (this.#below.parentNode && this.#below))
      }
      next = row
    }
    this.#fill(this.#above, first, true)
    this.#fill(this.#below, this.#rows.length - end, false)
    for (const cell of this.table.tHead.rows[0].cells) cell.style.minWidth = `${cell.offsetWidth}px` // columns do not jump
  }

  #fill(row, count, before) {
    row.firstChild.style.height = `${count * this.#height}px`
    if (!count) row.remove()
    else if (!row.parentNode) this.body[before ? "prepend" : "append"](row)
  }
}

const filler = () => h("tr", { class: "filler", "aria-hidden": "true" }, h("td", { colspan: 99 }))

export const facts = (pairs, kind = "") => h("dl", { class: `facts ${kind}` }, pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value ?? "–"))))

export const card = (title, ...content) => h("section", { class: "card" }, title && h("h2", {}, title), content)

/** Tabs that are links, so that each has an address. */
export const tabs = (parts, query, names, current, label) =>
  h("nav", { class: "tabs", "aria-label": label }, names.map(([name, text]) => link(parts, text, { ...query, tab: name }, { "aria-current": name === current && "page" })))

const ROW = 24
const KEPT_MAX = 50_000

/**
 * A list of any length, of which the rows in view are in the document. Rows are added at any rate; the document changes once
 * per frame. While the end is in view, the list follows it.
 */
export class VirtualList {
  #rows = []
  #shown = []
  #dropped = 0
  #frame = 0
  #selected
  #pool = []

  /** `cells(row)` returns the text of a row's cells; `text(row)` what the filter looks at; `onselect(row)` shows one. */
  constructor({ cells, text, onselect, label, columns }) {
    this.cells = cells
    this.text = text
    this.onselect = onselect
    this.match = undefined
    this.follow = true
    this.columns = columns
    this.space = h("div", { class: "v-space" })
    this.element = h("div", { class: `v-list ${columns}`, tabindex: "0", role: "listbox", "aria-label": label, onscroll: () => this.#scrolled(), onkeydown: (event) => this.#key(event) }, this.space)
    new ResizeObserver(() => this.#soon()).observe(this.element)
  }

  get size() {
    return this.#rows.length
  }
  get shown() {
    return this.#shown.length
  }
  get dropped() {
    return this.#dropped
  }
  get rows() {
    return this.#shown
  }

  add(rows) {
    for (const row of rows) {
      this.#rows.push(row)
      if (!this.match || this.match(this.text(row))) this.#shown.push(row)
    }
    if (this.#rows.length > KEPT_MAX * 1.1) {
      const cut = this.#rows.length - KEPT_MAX
      this.#dropped += cut
      const last = this.#rows[cut - 1]
      this.#rows.splice(0, cut)
      if (!this.match) this.#shown.splice(0, cut)
      else this.#shown = this.#shown.slice(this.#shown.lastIndexOf(last) + 1)
    }
    this.#soon()
  }

  clear() {
    this.#rows = []
    this.#shown = []
    this.#dropped = 0
    this.#soon()
  }

  filter(match) {
    this.match = match
    this.#shown = match ? this.#rows.filter((row) => match(this.text(row))) : [...this.#rows]
    this.#soon()
  }

  select(row) {
    this.#selected = row
    this.onselect?.(row)
    this.#soon()
  }

  top() {
    this.follow = false
    this.element.scrollTop = 0
    this.#soon()
  }

  #soon() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0
      this.#draw()
    })
  }

  #scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.element
    if (!this.moving) this.follow = scrollTop + clientHeight >= scrollHeight - ROW
    this.moving = false
    this.#soon()
  }

  #key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key]
    if (!step || !this.#shown.length) return
    event.preventDefault()
    const at = this.#selected ? this.#shown.indexOf(this.#selected) : -1
    const next = Math.max(0, Math.min(this.#shown.length - 1, at < 0 ? (step > 0 ? 0 : this.#shown.length - 1) : at + step))
    this.follow = false
    const { scrollTop, clientHeight } = this.element
    if (next * ROW < scrollTop) this.element.scrollTop = next * ROW
    if ((next + 1) * ROW > scrollTop + clientHeight) this.element.scrollTop = (next + 1) * ROW - clientHeight
    this.select(this.#shown[next])
  }

  #draw() {
    const { element, space } = this
    const before = element.scrollTop
    space.style.height = `${this.#shown.length * ROW}px`
    if (this.follow) {
      const end = Math.max(0, this.#shown.length * ROW - element.clientHeight)
      if (Math.abs(element.scrollTop - end) > 1) {
        this.moving = true
        element.scrollTop = end
      }
    }
    const first = Math.max(0, Math.floor(element.scrollTop / ROW) - 4)
    const count = Math.min(this.#shown.length - first, Math.ceil(element.clientHeight / ROW) + 8)
    while (this.#pool.length < count) {
      const row = h("div", { class: "v-row", role: "option", onclick: () => this.select(row.row) })
      this.#pool.push(row)
      space.append(row)
    }
    this.#pool.forEach((row, at) => {
      row.hidden = at >= count
      if (row.hidden) return
      const value = this.#shown[first + at]
      row.style.transform = `translateY(${(first + at) * ROW}px)`
      row.setAttribute("aria-selected", value === this.#selected)
      if (row.row === value) return
      row.row = value
      const cells = this.cells(value)
      while (row.children.length < cells.length) row.append(h("span"))
      cells.forEach((text, column) => {
        row.children[column].textContent = text
      })
    })
      if (element.scrollTop !== before) this.moving = true // the list became shorter than that: the user has not scrolled
  }
}

// -- charts

const DOT = "m-2 0h4" // a point between gaps

/** A chart of lines over time: `draw(times, [{ name, values, class }])`; null values are gaps, undefined ones unknown. */
export function chart(title, format, { height = 96 } = {}) {
  const now = h("b", { class: "num" })
  const legend = h("span", { class: "legend" })
  const plot = s("svg", { class: "plot", role: "img", preserveAspectRatio: "none" })
  const hint = h("div", { class: "hint", hidden: true })
  const element = h("section", { class: "card chart" }, h("header", {}, h("h2", {}, title), legend, now), h("div", { class: "plot-box" }, plot, hint))
  let drawn = [[], []]
  let width = 300
  new ResizeObserver(([entry]) => {
    width = Math.max(80, entry.contentRect.width)
    draw(...drawn)
  }).observe(plot)

  function draw(times, series) {
    drawn = [times, series]
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`)
    plot.setAttribute("height", height)
    const last = (values) => values.findLast((value) => value !== undefined) // null: there is none now
    now.textContent = series.length ? format(last(series[0].values) ?? null) : ""
    legend.replaceChildren(...(series.length > 1 ? series.map((each, at) => h("span", { class: `key k${at}` }, each.name)) : []))
    plot.setAttribute("aria-label", `${title}: ${series.map((each) => `${each.name} now ${format(last(each.values) ?? null)}`).join(", ")}`)
    if (times.length < 2) return plot.replaceChildren(s("text", { x: width / 2, y: height / 2, class: "none" }, "No samples yet"))
    const [from, to] = [times[0], times.at(-1)]
    const top = Math.max(...series.flatMap((each) => each.values.map((value) => value ?? 0))) || 1
    const x = (at) => ((at - from) / (to - from || 1)) * width
    const y = (value) => height - 14 - (value / top) * (height - 24)
    const lines = series.map((each, at) => {
      let path = ""
      let open = 0 // points of the line so far
      let start = 0
      let area = ""
      each.values.forEach((value, index) => {
        if (value === null || value === undefined) {
          if (open) area += `L${x(times[index - 1]).toFixed(1)} ${height - 14}L${start.toFixed(1)} ${height - 14}Z`
          if (open === 1) path += DOT
          open = 0
          return
        }
        const point = `${x(times[index]).toFixed(1)} ${y(value).toFixed(1)}`
        if (!open) start = x(times[index])
        path += `${open ? "L" : "M"}${point}`
        area += `${open ? "L" : `M${start.toFixed(1)} ${height - 14}L`}${point}`
        open++
      })
      if (open === 1) path += DOT
      if (open) area += `L${x(times.at(-1)).toFixed(1)} ${height - 14}L${start.toFixed(1)} ${height - 14}Z`
      return [at === 0 && s("path", { d: area, class: "area" }), s("path", { d: path, class: `line k${at}` })]
    })
    const label = (at, anchor, place) => s("text", { x: place, y: height - 2, "text-anchor": anchor }, clock(new Date(at)).slice(0, 5))
    const axis = s("path", { d: `M0 ${height - 13.5}H${width}M0 ${y(top)}H${width}`, class: "axis" })
    plot.replaceChildren(axis, ...lines.flat().filter(Boolean), s("text", { x: 0, y: y(top) - 2 }, format(top)), label(from, "start", 0), label(to, "end", width))
  }
  plot.addEventListener("pointermove", (event) => {
    const [times, series] = drawn
    if (times.length < 2) return
    const box = plot.getBoundingClientRect()
    const want = times[0] + ((event.clientX - box.left) / box.width) * (times.at(-1) - times[0])
    let at = times.findIndex((each) => each >= want)
    if (at < 0) at = times.length - 1
    hint.hidden = false
    hint.textContent = `${clock(new Date(times[at]))}  ${series.map((each) => `${series.length > 1 ? `${each.name} ` : ""}${format(each.values[at] ?? null)}`).join("  ")}`
    hint.style.left = `${Math.min(Math.max(0, event.clientX - box.left - 40), Math.max(0, box.width - 130))}px`
  })
  plot.addEventListener("pointerleave", () => {
    hint.hidden = true
  })
  draw([], [])
  return { element, draw }
}
