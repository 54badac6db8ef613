// The page of examples/chat in Chromium: a question goes by a table, a route and a topic to the worker, and comes back.
import assert from "node:assert/strict"
import { execFileSync } from "node:child_process"
import { after, before, test } from "node:test"
import { Chromium } from "../../examples/editor/test/chromium.mjs"

const timeout = 120_000
const shots = process.env.SCREENSHOTS // a directory
let browser

before(async () => {
  const executable = execFileSync("../../tools/ensure-chromium", ["--find"], { encoding: "utf8" }).trim()
  browser = await Chromium.start(executable)
})

after(() => browser?.stop())

const said = (page) => page.evaluate(`[...document.querySelectorAll("#messages li > p")].map((each) => each.textContent)`)
const items = `[...document.querySelectorAll("#messages li")]`

async function say(page, text) {
  await page.evaluate(`document.getElementById("body").focus()`)
  await page.type(text)
  await page.evaluate(`document.querySelector("form").requestSubmit()`)
}

test("a question is answered word by word in every window, and its way is shown", { timeout }, async () => {
  const ann = await browser.window(`${process.env.CHAT_URL}/?name=Ann`, { width: 900, height: 640 })
  const ben = await browser.window(`${process.env.CHAT_URL}/?name=Ben`, { width: 900, height: 640 })
  for (const page of [ann, ben]) await page.until(`window.chat !== undefined`)
  await say(ben, "Good morning!")
  await ann.until(`${items}.some((each) => each.textContent.includes("Good morning!"))`)
  await say(ann, "Is anything lost?")
  await ben.until(`document.querySelector("li.assistant.writing")`) // the reply, while it is written
  for (const page of [ann, ben]) {
    await page.until(`document.querySelector("li.assistant:not(.writing)")?.textContent.includes("one transaction")`)
    assert.deepEqual((await said(page)).slice(0, 2), ["Good morning!", "Is anything lost?"])
  }
  await ann.until(`${items}.some((each) => each.querySelector(".path")?.textContent.endsWith("→ assistant: acknowledged"))`)
  await ann.until(`${items}[0].querySelector(".path").textContent.endsWith("no question, no route")`)
  if (shots) await ann.screenshot(`${shots}/chat.png`)
  assert.deepEqual([...ann.errors, ...ben.errors], [])
})
