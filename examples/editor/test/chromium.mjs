// Drives Chromium by its DevTools protocol over a pipe: no driver is installed for it.
import { spawn } from "node:child_process"
import { mkdtemp, rm, writeFile } from "node:fs/promises"
import { tmpdir } from "node:os"
import { join } from "node:path"

const OPTIONS = [
  "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
  "--disable-background-networking", "--disable-component-update", "--disable-background-timer-throttling",
  "--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows", "--remote-debugging-pipe",
]

export class Chromium {
  #process
  #profile
  #waiting = new Map()
  #listeners = new Set()
  #last = 0
  #rest = ""

  static async start(executable) {
    const made = new Chromium()
    made.#profile = await mkdtemp(join(tmpdir(), "editor-chromium-"))
    made.#process = spawn(executable, [...OPTIONS, `--user-data-dir=${made.#profile}`], {
      stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"],
    })
    made.#process.stdio[4].setEncoding("utf8").on("data", (text) => made.#received(text))
    made.#process.on("exit", () => {
      for (const { reject } of made.#waiting.values()) reject(new Error("Chromium has ended"))
    })
    return made
  }

  /** A window: with storage and connections of its own, or those of another window. */
  async window(url, { width = 1280, height = 800, beside } = {}) {
    const browserContextId = beside?.context ?? (await this.send("Target.createBrowserContext")).browserContextId
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank", browserContextId, newWindow: true })
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true })
    const page = new Page(this, sessionId, browserContextId)
    await page.send("Page.enable")
    await page.send("Runtime.enable")
    await page.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false })
    await page.send("Page.navigate", { url })
    return page
  }

  send(method, params = {}, sessionId) {
    const id = ++this.#last
    this.#process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`)
    return new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }))
  }

  listen(listener) {
    this.#listeners.add(listener)
  }

  #received(text) {
    const messages = (this.#rest + text).split("\0")
    this.#rest = messages.pop()
    for (const message of messages.map((each) => JSON.parse(each))) {
      const waiting = this.#waiting.get(message.id)
      this.#waiting.delete(message.id)
      if (waiting === undefined) for (const listener of this.#listeners) listener(message)
      else if (message.error) waiting.reject(new Error(`${message.error.message} (${message.error.code})`))
      else waiting.resolve(message.result)
    }
  }

  async stop() {
    const ended = new Promise((resolve) => this.#process.on("exit", resolve))
    this.#process.kill()
    await ended
    await rm(this.#profile, { recursive: true, force: true, maxRetries: 5 })
  }
}

class Page {
  /** Errors that no handler of the page has caught. */
  errors = []

  constructor(browser, sessionId, context) {
    this.browser = browser
    this.context = context
    this.sessionId = sessionId
    browser.listen(({ method, params, sessionId: of }) => {
      if (of !== sessionId) return
      if (method === "Runtime.exceptionThrown") this.errors.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text)
    })
  }

  send(method, params) {
    return this.browser.send(method, params, this.sessionId)
  }

  /** The value of an expression, or of the promise that it gives. */
  async evaluate(expression) {
    const parameters = { expression, awaitPromise: true, returnByValue: true }
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", parameters)
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text)
    return result.value
  }

  /** Wait until an expression is true. */
  async until(expression, timeoutMs = 60_000) {
    const end = Date.now() + timeoutMs
    while (!(await this.evaluate(`Boolean(${expression})`).catch(() => false))) {
      if (Date.now() > end) throw new Error(`this never came: ${expression}`)
      await new Promise((resolve) => setTimeout(resolve, 30))
    }
  }

  type(text) {
    return this.send("Input.insertText", { text })
  }

  async key(key, { control = false, shift = false } = {}) {
    const code = key.length === 1 ? key.toUpperCase().charCodeAt(0) : 0
    const event = { key, windowsVirtualKeyCode: code, modifiers: (control ? 2 : 0) + (shift ? 8 : 0) }
    await this.send("Input.dispatchKeyEvent", { type: "rawKeyDown", ...event })
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...event })
  }

  async screenshot(file) {
    const { data } = await this.send("Page.captureScreenshot", { format: "png" })
    await writeFile(file, Buffer.from(data, "base64"))
  }
}
