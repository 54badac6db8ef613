// An open document: its text, who else is in it, and its connection, which is made again after every loss.
import { YjsProvider } from "@durable-streams/y-durable-streams"
import { IndexeddbPersistence } from "y-indexeddb"
import { Awareness } from "y-protocols/awareness"
import * as Y from "yjs"
import { SERVICE, liveOrigin, repair, updatesOf } from "./log.js"

const PING_MS = 2_000
const RETRY_MS_MIN = 250
const RETRY_MS_MAX = 5_000

export class Session extends EventTarget {
  #provider
  #persistence
  #ended = new AbortController()
  #retryMs = RETRY_MS_MIN
  #reachable = true
  #repairing = 0

  /**
   * @param {string} name  of the document
   * @param {{ name: string, color: string, colorLight: string }} user
   */
  constructor(name, user) {
    super()
    this.name = name
    this.user = user
    this.doc = new Y.Doc()
    this.text = this.doc.getText("content")
    this.settings = this.doc.getMap("settings")
    this.undo = new Y.UndoManager(this.text)
    this.awareness = new Awareness(this.doc)
    // Edits made without a connection survive the closing of the page.
    this.#persistence = new IndexeddbPersistence(`tailrace-editor/${name}`, this.doc)
    this.#provider = new YjsProvider({
      doc: this.doc,
      awareness: this.awareness,
      baseUrl: `${liveOrigin}/v1/yjs/${SERVICE}`,
      docId: name,
      connect: false,
    })
    this.#provider.on("status", (status) => this.#statusChanged(status))
    this.#provider.on("synced", () => this.#report())
    this.#provider.on("error", () => this.#report())
    this.awareness.on("change", () => this.#report())
    const { signal } = this.#ended
    addEventListener("online", () => this.#check(), { signal })
    addEventListener("offline", () => this.#lost(), { signal })
    this.#persistence.whenSynced.then(() => this.#connect())
    this.#watch()
  }

  /** `connecting`, `online`, `saving` or `offline`. */
  get state() {
    if (!this.#reachable) return "offline"
    if (!this.#provider.connected) return "connecting"
    return this.#provider.synced && this.#repairing === 0 ? "online" : "saving"
  }

  /** The people in the document, this one first; each once, however many windows they have. */
  get people() {
    const found = new Map()
    for (const [id, { user }] of this.awareness.getStates()) {
      if (user && (id === this.doc.clientID || !found.has(user.name))) {
        found.set(user.name, { ...user, self: id === this.doc.clientID || found.get(user.name)?.self })
      }
    }
    return [...found.values()].sort((a, b) => Number(b.self ?? false) - Number(a.self ?? false))
  }

  rename(user) {
    this.user = user
    this.awareness.setLocalStateField("user", user)
  }

  async close() {
    this.#ended.abort()
    await this.#persistence.destroy()
    await this.#provider.disconnect()
    this.#provider.destroy()
    this.awareness.destroy()
    this.doc.destroy()
  }

  // -- the connection

  #connect() {
    if (!this.#ended.signal.aborted) this.#provider.connect()
  }

  async #statusChanged(status) {
    this.#report()
    if (this.#ended.signal.aborted) return
    if (status === "disconnected") {
      setTimeout(() => this.#connect(), this.#retryMs)
      this.#retryMs = Math.min(this.#retryMs * 2, RETRY_MS_MAX)
    }
    if (status === "connected") {
      this.#retryMs = RETRY_MS_MIN
      this.#reachable = true
      this.awareness.setLocalState({ ...this.awareness.getLocalState(), user: this.user }) // a disconnect clears it
      await this.#repair()
    }
  }

  /** The provider sends each edit once. What did not arrive is found in the log, and appended. */
  async #repair() {
    this.#repairing++
    try {
      await repair(this.name, this.doc, this.#ended.signal)
    } catch (error) {
      if (!this.#ended.signal.aborted) console.warn("the log could not be compared; the next connection tries again", error)
    } finally {
      this.#repairing--
      this.#report()
    }
  }

  /** A request every two seconds: an event stream that broke without a sound is noticed by it. */
  async #watch() {
    while (!this.#ended.signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, PING_MS))
      await this.#check()
    }
  }

  async #check() {
    if (this.#ended.signal.aborted) return
    const reached = await fetch(updatesOf(this.name).target, { method: "HEAD", signal: AbortSignal.timeout(PING_MS * 2) })
      .then(({ status }) => status < 500)
      .catch(() => false)
    if (!reached) return this.#lost()
    if (!this.#reachable) {
      this.#reachable = true
      await this.#provider.disconnect() // the status brings the next connection, and that what was lost
    }
  }

  #lost() {
    this.#reachable = false
    this.#report()
  }

  #report() {
    this.dispatchEvent(new Event("change"))
  }
}
