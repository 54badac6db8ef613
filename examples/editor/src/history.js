// The past of a document, from its log: any version, when it was written, and how it differs from the present one.
import * as Y from "yjs"
import { describe, timeline, updates } from "./log.js"

const KEPT_EVERY = 128 // versions: a state is kept, so that the next one is not made from the beginning

export class History {
  #updates
  #timeOf
  #kept = new Map()

  constructor(found, timeOf) {
    this.#updates = found
    this.#timeOf = timeOf
  }

  static async read(name) {
    const found = await updates(name)
    const size = found.at(-1)?.end ?? 0
    const known = await describe(name)
    return new History(found, await timeline(name, known.created.getTime(), known.at.getTime(), size))
  }

  /** The number of versions; 0 is the empty document. */
  get length() {
    return this.#updates.length
  }

  /** About when a version was written. */
  timeOf(version) {
    return this.#timeOf(version === 0 ? 0 : this.#updates[version - 1].end)
  }

  /** The text of a version. */
  textOf(version) {
    const doc = new Y.Doc({ gc: false })
    let from = version - (version % KEPT_EVERY)
    while (from > 0 && !this.#kept.has(from)) from -= KEPT_EVERY
    if (from > 0) Y.applyUpdate(doc, this.#kept.get(from))
    for (let at = from; at < version; at++) {
      Y.applyUpdate(doc, this.#updates[at].update)
      if ((at + 1) % KEPT_EVERY === 0) this.#kept.set(at + 1, Y.encodeStateAsUpdate(doc))
    }
    const text = doc.getText("content").toString()
    doc.destroy()
    return text
  }
}

/** The lines of `shown` that `other` does not have, by number from 1. */
export function linesOnlyIn(shown, other) {
  const counts = new Map()
  for (const line of other.split("\n")) counts.set(line, (counts.get(line) ?? 0) + 1)
  const found = []
  shown.split("\n").forEach((line, index) => {
    const left = counts.get(line) ?? 0
    if (left > 0) counts.set(line, left - 1)
    else if (line.trim() !== "") found.push(index + 1)
  })
  return found
}

/** Change a text to another one, only where they differ. */
export function replaceText(text, wanted) {
  const present = text.toString()
  let start = 0
  while (start < present.length && start < wanted.length && present[start] === wanted[start]) start++
  let end = 0
  const room = Math.min(present.length, wanted.length) - start
  while (end < room && present[present.length - 1 - end] === wanted[wanted.length - 1 - end]) end++
  text.doc.transact(() => {
    text.delete(start, present.length - start - end)
    text.insert(start, wanted.slice(start, wanted.length - end))
  })
}
