// Two windows of the editor in Chromium, each behind a connection of its own that can be cut, on one Tailrace server.
import assert from "node:assert/strict"
import { execFileSync } from "node:child_process"
import { mkdtemp, rm } from "node:fs/promises"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { after, before, test } from "node:test"
import { buildPage } from "../build.mjs"
import { startPage, startYjs } from "../serve.mjs"
import { Chromium } from "./chromium.mjs"

const timeout = 180_000
const tailrace = process.env.TAILRACE_URL
const shots = process.env.SCREENSHOTS // a directory
let browser, yjs, directory, count = 0
const gates = []

/** A way to the server for one window: it can be cut, and be there again on the same port. */
class Gate {
  async open(port = 0) {
    this.server = await startPage({ tailrace, yjs: yjs.url, directory, port })
    this.port = this.server.address().port
    return this
  }

  async cut() {
    const closed = new Promise((resolve) => this.server.close(resolve))
    this.server.closeAllConnections()
    await closed
  }
}

before(async () => {
  assert.ok(tailrace, "TAILRACE_URL is not set")
  directory = await buildPage(await mkdtemp(join(tmpdir(), "editor-page-")))
  yjs = await startYjs(tailrace)
  const executable = execFileSync("../../tools/ensure-chromium", ["--find"], { encoding: "utf8" }).trim()
  browser = await Chromium.start(executable)
})

after(async () => {
  await browser?.stop()
  for (const gate of gates) await gate.cut()
  await yjs?.stop()
  await rm(directory, { recursive: true, force: true })
  await globalThis[Symbol.for("undici.globalDispatcher.1")]?.destroy()
})

const fresh = (name) => `${name}-${process.pid}-${count++}`

async function gate() {
  const made = await new Gate().open()
  gates.push(made)
  return made
}

async function join_(name, user, options) {
  const way = options?.beside?.gate ?? (await gate())
  const page = await browser.window(`http://127.0.0.1:${way.port}/?name=${user}#${name}`, options)
  page.gate = way
  await page.until(`window.editor?.session?.state === "online"`)
  await page.evaluate(`window.editor.view.focus()`)
  return page
}

const textOf = (page) => page.evaluate(`window.editor.session.text.toString()`)
const state = (page, wanted) => page.until(`window.editor.session.state === ${JSON.stringify(wanted)}`)
const shows = (page, text) => page.until(`document.querySelector("#editor .cm-content").textContent.includes(${JSON.stringify(text)})`)
const at = (page, position) => page.evaluate(`window.editor.view.dispatch({ selection: { anchor: ${position} } })`)

async function converged(...pages) {
  const end = Date.now() + 60_000
  for (;;) {
    const texts = await Promise.all(pages.map(textOf))
    if (texts.every((text) => text === texts[0])) return texts[0]
    if (Date.now() > end) assert.fail(`they differ: ${JSON.stringify(texts)}`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

test("two windows see each other's edits and cursors, and undo their own", { timeout }, async () => {
  const name = fresh("together")
  const ann = await join_(name, "Ann")
  const ben = await join_(name, "Ben")
  await ann.type("Hello from Ann. ")
  await shows(ben, "Hello from Ann.")
  await at(ben, 16)
  await ben.type("Hello from Ben.")
  await shows(ann, "Hello from Ann. Hello from Ben.")
  for (const [page, other] of [[ann, "Ben"], [ben, "Ann"]]) {
    await page.until(`[...document.querySelectorAll("#people li")].some((each) => each.title === "${other}")`)
  }
  await ann.until(`document.querySelector(".cm-ySelectionInfo")?.textContent === "Ben"`)
  await ann.key("z", { control: true })
  await shows(ben, "Hello from Ben.")
  assert.equal(await converged(ann, ben), "Hello from Ben.")
  await ben.until(`[...document.querySelectorAll("#documents b")].some((each) => each.textContent === "${name}")`)
  assert.deepEqual([...ann.errors, ...ben.errors], [])
})

test("edits of both sides of a network loss are merged", { timeout }, async () => {
  const name = fresh("loss")
  const ann = await join_(name, "Ann")
  const ben = await join_(name, "Ben")
  await ann.type("one\ntwo\n")
  await shows(ben, "two")
  for (let round = 0; round < 2; round++) {
    await ben.gate.cut()
    await at(ben, 0)
    await ben.type(`[without ${round}] `)
    await state(ben, "offline")
    await ben.type(`(more ${round}) `)
    await at(ann, (await textOf(ann)).length)
    await ann.type(`meanwhile ${round}\n`)
    await state(ann, "online")
    await ben.gate.open(ben.gate.port)
    await state(ben, "online")
    const text = await converged(ann, ben)
    assert.ok(text.startsWith(`[without ${round}] (more ${round}) `) && text.endsWith(`meanwhile ${round}\n`), text)
  }
  const late = await join_(name, "Cyd")
  assert.equal(await converged(ann, ben, late), await textOf(ann))
})

test("four windows of one browser: more than it has connections to one host", { timeout }, async () => {
  const name = fresh("many")
  const first = await join_(name, "Ann")
  const all = [first]
  for (const user of ["Ben", "Cyd", "Dan"]) all.push(await join_(name, user, { beside: first }))
  for (const [number, page] of all.entries()) {
    await page.type(`${number} `)
    await state(page, "online")
  }
  for (const page of all) await page.until(`/^(\\d ){4}$/.test(window.editor.session.text.toString())`)
  await converged(...all)
})

test("any version of the past is shown, and can be restored", { timeout }, async () => {
  const ann = await join_(fresh("past"), "Ann")
  for (const line of ["first\n", "second\n", "third\n"]) {
    await ann.type(line)
    await state(ann, "online")
    await ann.evaluate(`window.editor.session.undo.stopCapturing()`)
  }
  const past = `document.querySelector("#past .cm-content").innerText.trim()`
  await ann.evaluate(`document.getElementById("history-toggle").click()`)
  await ann.until(`!document.getElementById("history").hidden`)
  await ann.until(`${past}.endsWith("third")`)
  const versions = Number(await ann.evaluate(`document.getElementById("version").max`))
  assert.ok(versions >= 3)
  const seen = []
  for (let version = versions; version >= 0; version--) {
    await ann.evaluate(`(document.getElementById("version").value = ${version}, document.getElementById("version").dispatchEvent(new Event("input")))`)
    seen.push(await ann.evaluate(past))
  }
  assert.equal(seen.at(-1), "")
  assert.ok(seen.includes("first") && seen.includes("first\nsecond"), JSON.stringify(seen))
  const wanted = versions - seen.indexOf("first\nsecond")
  await ann.evaluate(`(document.getElementById("version").value = ${wanted}, document.getElementById("version").dispatchEvent(new Event("input")))`)
  await ann.evaluate(`document.getElementById("restore").click()`)
  await ann.until(`window.editor.session.text.toString() === "first\\nsecond\\n"`)
  await ann.evaluate(`document.getElementById("undo").click()`)
  await ann.until(`window.editor.session.text.toString() === "first\\nsecond\\nthird\\n"`)
  assert.deepEqual(ann.errors, [])
})

test("screenshots", { timeout, skip: !shots }, async () => {
  const name = "release-notes"
  const ann = await join_(name, "Ann%20Field")
  const ben = await join_(name, "Ben%20Rivers")
  const lines = ["# Release notes\n", "\n", "Tailrace keeps every edit in **one log**, so a document has a past.\n", "\n"]
  for (const line of [...lines, "- edits of others are visible at once\n", "- a window without a connection goes on\n"]) {
    await at(ann, (await textOf(ann)).length)
    await ann.type(line)
    await state(ann, "online")
  }
  await at(ben, 20)
  await ben.evaluate(`window.editor.view.dispatch({ selection: { anchor: 34, head: 52 } })`)
  await ann.until(`document.querySelector(".cm-ySelectionInfo")`)
  await ann.screenshot(`${shots}/editor.png`)
  await ann.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: "dark" }] })
  await ann.screenshot(`${shots}/editor-dark.png`)
  await ann.send("Emulation.setEmulatedMedia", { features: [] })
  await ann.evaluate(`document.getElementById("history-toggle").click()`)
  await ann.until(`!document.getElementById("history").hidden`)
  await ann.evaluate(`document.getElementById("version-back").click()`)
  await ann.screenshot(`${shots}/editor-history.png`)
  await ben.gate.cut()
  await state(ben, "offline")
  await ben.screenshot(`${shots}/editor-offline.png`)
  const phone = await join_(name, "Cyd", { width: 390, height: 800 })
  await phone.screenshot(`${shots}/editor-phone.png`)
})
