/** Messages as they are written: a list that keeps up with any rate, with pause, filter, and one message in full. */

import { VirtualList, button, failure, h, jsonView, number, state } from "./ui.js"

const SETTLED_MS = 2_000 // what comes earlier was there before: it is no rate

/**
 * `follow(offset, signal)` yields `{ rows, offset }`; `read(offset)` one page of the same, with `upToDate`. Without `live` the
 * list is read page by page. To pause is to stop reading, and to continue where it stopped: nothing is lost or held back.
 */
export class Tail {
  #stop
  #recent = []
  #began = 0
  turn = 0
  #timer

  constructor({ read, follow, cells, text, detail, columns, label, signal }) {
    Object.assign(this, { read, follow, detailOf: detail, outer: signal })
    this.list = new VirtualList({ cells, text, label, columns, onselect: (row) => this.#show(row) })
    this.status = h("span", { class: "live", role: "status" })
    this.count = h("span", { class: "dim" })
    this.error = h("div")
    this.pause = button("Live", () => (this.#stop ? this.stop() : this.live()), { "aria-pressed": "false" })
    this.more = button("Read on", () => this.page(), { hidden: true })
    const search = h("input", { type: "search", placeholder: "Filter: text, or a.b=value", "aria-label": "Filter the messages" })
    search.addEventListener("input", () => {
      this.list.filter(matcher(search.value))
      this.#counted()
    })
    const top = button("To the top", () => this.list.top())
    const clear = button("Clear", () => (this.list.clear(), this.list.select(undefined), this.#counted()))
    this.toolbar = h("div", { class: "bar center" }, this.pause, search, this.status, this.count, h("span", { class: "grow" }), this.more, top, clear)
    this.detail = h("aside", { class: "detail", "aria-label": "The selected message", hidden: true })
    this.empty = h("p", { class: "v-empty", hidden: true })
    this.split = h("div", { class: "split alone" }, h("div", { class: "v-box" }, this.list.element, this.empty), this.detail)
    this.element = [this.toolbar, this.error, this.split]
    this.#timer = setInterval(() => this.#counted(), 500)
    signal.addEventListener("abort", () => {
      clearInterval(this.#timer)
      this.stop()
    })
  }

  /** Begin at an offset, or at the one that a promise has: live, or with one page. The last start is the one that counts. */
  async start(offset, live) {
    const turn = ++this.turn
    this.stop()
    this.list.clear()
    this.list.select(undefined)
    this.ended = this.caughtUp = false
    this.#counted()
    const found = await offset
    if (turn !== this.turn || this.outer.aborted) return
    this.list.follow = live
    this.offset = found
    if (live) this.live()
    else {
      await this.page()
      this.list.top()
    }
  }

  async page() {
    const { turn } = this
    this.stop()
    this.error.replaceChildren()
    this.more.disabled = true
    try {
      const page = await this.read(this.offset)
      if (turn !== this.turn) return
      this.list.follow = false // what is read on comes below what is in view
      this.#add(page)
      this.more.hidden = page.upToDate
      this.caughtUp = page.upToDate
      this.count.title = page.upToDate && !this.ended ? "This is the end; Live shows what comes next." : ""
    } catch (error) {
      if (turn === this.turn && !this.outer.aborted) this.error.replaceChildren(failure(error, () => this.page()))
    } finally {
      this.more.disabled = false
    }
  }

  async live() {
    const stop = new AbortController()
    this.#stop = stop
    this.#began = performance.now()
    this.more.hidden = true
    this.list.follow = true
    this.error.replaceChildren()
    this.#state()
    try {
      for await (const page of this.follow(this.offset, stop.signal)) {
        if (stop.signal.aborted) return
        this.#add(page)
      }
      if (!stop.signal.aborted) this.ended = true // the stream is closed
    } catch (error) {
      if (!stop.signal.aborted && !this.outer.aborted) this.error.replaceChildren(failure(error, () => this.live()))
    } finally {
      if (this.#stop === stop) {
        this.#stop = undefined
        this.#state()
      }
    }
  }

  stop() {
    this.#stop?.abort()
    this.#stop = undefined
    this.#state()
  }

  #add({ rows, offset, closed }) {
    this.offset = offset
    this.ended ||= !!closed
    const now = performance.now()
    if (now - this.#began > SETTLED_MS) this.#recent.push([now, rows.length])
    this.list.add(rows)
    if (this.list.size === rows.length) this.#counted()
    if (closed) this.#state()
  }

  #state() {
    const on = !!this.#stop
    this.pause.textContent = on ? "Pause" : "Live"
    this.pause.hidden = this.ended && !on
    this.pause.setAttribute("aria-pressed", on)
    this.status.className = `live ${on ? "on" : ""}`
    this.status.textContent = on ? "live" : this.ended ? "closed" : "paused"
  }

  #counted() {
    const now = performance.now()
    this.#recent = this.#recent.filter(([at]) => now - at < 2_000)
    const rate = this.#stop ? this.#recent.reduce((sum, [, count]) => sum + count, 0) / 2 : 0
    const { list } = this
    const parts = [`${number(list.shown)}${list.match ? ` of ${number(list.size)}` : ""} shown`]
    if (rate) parts.push(`${number(Math.round(rate))}/s`)
    if (list.dropped) parts.push(`${number(list.dropped)} older ones left the list`)
    this.count.textContent = parts.join(" · ")
    this.empty.hidden = list.shown > 0
    this.empty.textContent = list.size ? "Nothing matches the filter." : this.#stop ? "Waiting for messages…" : this.caughtUp ? "There are no messages from here on." : ""
  }

  #show(row) {
    this.detail.hidden = !row
    this.split.classList.toggle("alone", !row)
    if (row) this.detail.replaceChildren(...[this.detailOf(row)].flat(Infinity).filter(Boolean), button("Close", () => this.list.select(undefined), { class: "small" }))
  }
}

/** `a.b=text` compares a member, other text is looked for in the whole message. */
function matcher(text) {
  const wanted = text.trim().toLowerCase()
  if (!wanted) return undefined
  const member = /^([\w.$-]+)=(.*)$/.exec(wanted)
  if (!member) return (message) => message.toLowerCase().includes(wanted)
  const path = member[1].split(".")
  return (message) => {
    try {
      let value = JSON.parse(message.toLowerCase())
      for (const name of path) value = value?.[name]
      return String(value) === member[2]
    } catch {
      return false
    }
  }
}

/** A value in full. */
export const whole = (value) => (value instanceof Uint8Array ? hex(value) : typeof value === "string" ? jsonView(pretty(value)) : jsonView(value))

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2)
  } catch {
    return text
  }
}

function hex(data) {
  const lines = []
  for (let at = 0; at < Math.min(data.length, 4096); at += 8) {
    const part = data.subarray(at, at + 8)
    const digits = Array.from(part, (byte) => byte.toString(16).padStart(2, "0")).join(" ")
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(23)}  ${Array.from(part, (byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("")}`)
  }
  return [h("pre", { class: "json", tabindex: "0" }, lines.join("\n")), data.length > 4096 && state(`The first 4,096 of ${number(data.length)} bytes.`)]
}
