// The page: documents on the left, the editor with everyone's cursors, and the slider over the document's past.
import { defaultKeymap, indentWithTab } from "@codemirror/commands"
import { javascript } from "@codemirror/lang-javascript"
import { markdown } from "@codemirror/lang-markdown"
import { python } from "@codemirror/lang-python"
import { HighlightStyle, bracketMatching, indentOnInput, syntaxHighlighting } from "@codemirror/language"
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search"
import { Compartment, EditorState, RangeSetBuilder } from "@codemirror/state"
import { Decoration, EditorView, drawSelection, highlightActiveLine, highlightActiveLineGutter, keymap, lineNumbers, placeholder } from "@codemirror/view"
import { tags } from "@lezer/highlight"
import { yCollab, yUndoManagerKeymap } from "y-codemirror.next"
import { History, linesOnlyIn, replaceText } from "./history.js"
import { documents } from "./log.js"
import { initials, rememberName, thisUser, userNamed } from "./people.js"
import { Session } from "./session.js"

const $ = (id) => document.getElementById(id)
const STATES = { connecting: "Connecting…", online: "Saved", saving: "Saving…", offline: "Offline" }
const LANGUAGES = { markdown, javascript, python, text: () => [] }
const LIST_MS = 5_000

const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.modifier], color: "light-dark(#9333a8, #d6a2f0)" },
  { tag: [tags.string, tags.special(tags.string)], color: "light-dark(#15803d, #8bd5a0)" },
  { tag: [tags.number, tags.bool, tags.null], color: "light-dark(#b45309, #f0b673)" },
  { tag: [tags.comment, tags.quote], color: "light-dark(#74808b, #84909b)", fontStyle: "italic" },
  { tag: tags.function(tags.variableName), color: "light-dark(#1d4ed8, #8fb8ff)" },
  { tag: tags.heading, color: "light-dark(#0f5f8f, #8fc8ff)", fontWeight: "700" },
  { tag: tags.strong, fontWeight: "700" },
  { tag: tags.emphasis, fontStyle: "italic" },
  { tag: [tags.link, tags.url], color: "light-dark(#0f766e, #5eead4)", textDecoration: "underline" },
  { tag: [tags.monospace, tags.className, tags.typeName], color: "light-dark(#0e7490, #7dd3e8)" },
])

let user = thisUser()
let session
let view
let past // { view, history, version }
const language = new Compartment()

// -- the editor

const common = () => [
  lineNumbers(),
  drawSelection(),
  syntaxHighlighting(colours),
  EditorView.lineWrapping,
  language.of(LANGUAGES[$("language").value]()),
]

function editorOf(text, awareness, undoManager) {
  return new EditorView({
    parent: $("editor"),
    state: EditorState.create({
      doc: text.toString(),
      extensions: [
        ...common(),
        highlightActiveLine(),
        highlightActiveLineGutter(),
        highlightSelectionMatches(),
        bracketMatching(),
        indentOnInput(),
        placeholder("Write something. Everyone who opens this document sees it at once."),
        keymap.of([...yUndoManagerKeymap, indentWithTab, ...defaultKeymap, ...searchKeymap]),
        yCollab(text, awareness, { undoManager }),
        EditorView.contentAttributes.of({ "aria-label": "Text of the document" }),
        EditorView.updateListener.of(({ docChanged }) => docChanged && showCounts()),
      ],
    }),
  })
}

async function open(name) {
  await closePast()
  if (session) {
    view.destroy()
    session.close()
  }
  session = new Session(name, user)
  $("title").textContent = name
  document.title = `${name} · Editor`
  session.settings.observe(() => setLanguage(session.settings.get("language")))
  view = editorOf(session.text, session.awareness, session.undo)
  setLanguage("markdown")
  session.addEventListener("change", showState)
  session.undo.on("stack-item-added", showState)
  session.undo.on("stack-item-popped", showState)
  showState()
  showCounts()
  await list()
  view.focus()
  Object.assign(window.editor, { session, view }) // for tests, and for the curious
}

/** The language of a document is the same for all who are in it. */
function setLanguage(wanted) {
  const name = wanted in LANGUAGES ? wanted : "markdown"
  $("language").value = name
  const effects = language.reconfigure(LANGUAGES[name]())
  view.dispatch({ effects })
  past?.view?.dispatch({ effects })
}

function showState() {
  const { state } = session
  if (state === "online" && $("state").dataset.state === "saving") setTimeout(list, 100) // the log has grown
  $("state").dataset.state = state
  $("state").lastElementChild.textContent = STATES[state]
  $("offline").hidden = state !== "offline"
  $("undo").disabled = !session.undo.canUndo() || past !== undefined
  $("redo").disabled = !session.undo.canRedo() || past !== undefined
  $("people").replaceChildren(
    ...session.people.slice(0, 8).map(({ name, color, self }) => {
      const item = document.createElement("li")
      item.textContent = initials(name)
      item.title = self ? `${name} (you)` : name
      item.style.background = color
      return item
    }),
  )
}

function showCounts() {
  const text = session.text.toString()
  const words = text.split(/\s+/).filter(Boolean).length
  $("counts").textContent = `${text.split("\n").length} lines · ${words} words · ${text.length} characters`
}

// -- documents

async function list() {
  const found = await documents().catch(() => undefined)
  if (found === undefined) return
  if (session && !found.some(({ name }) => name === session.name)) found.unshift({ name: session.name, bytes: 0, at: new Date() })
  $("documents").replaceChildren(...(found.length > 0 ? found.map(linkTo) : [hint()]))
  const own = found.find(({ name }) => name === session?.name)
  if (own) $("log").textContent = `${size(own.bytes)} in the log`
}

function linkTo({ name, bytes, at }) {
  const link = document.createElement("a")
  link.href = `#${encodeURIComponent(name)}`
  const title = document.createElement("b")
  title.textContent = title.title = name
  const facts = document.createElement("small")
  facts.textContent = `${ago(at)} · ${size(bytes)}`
  link.append(title, facts)
  if (name === session?.name) link.setAttribute("aria-current", "page")
  return link
}

function hint() {
  const text = document.createElement("p")
  text.textContent = "There are no documents yet."
  return text
}

const size = (bytes) => (bytes < 1024 ? `${bytes} B` : bytes < 1 << 20 ? `${(bytes / 1024).toFixed(1)} KB` : `${(bytes / (1 << 20)).toFixed(1)} MB`)

function ago(at) {
  const seconds = (Date.now() - at.getTime()) / 1000
  if (seconds < 60) return "just now"
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`
  return at.toLocaleDateString()
}

/** A name that the Yjs server accepts: letters of ASCII, digits, hyphens and underscores. */
const cleaned = (name) =>
  name
    .normalize("NFKD")
    .replace(/[^\w\s-]/g, "")
    .trim()
    .replace(/\s+/g, "-")
    .slice(0, 80)

// -- history

async function openPast() {
  const history = await History.read(session.name)
  past = { history, version: history.length, view: undefined }
  $("history").hidden = $("past").hidden = false
  $("editor").hidden = true
  $("history-toggle").setAttribute("aria-expanded", "true")
  $("version").max = String(history.length)
  showVersion(history.length)
  $("version").focus()
}

function showVersion(version) {
  const { history } = past
  past.version = Math.max(0, Math.min(version, history.length))
  const text = history.textOf(past.version)
  const changed = new Set(linesOnlyIn(text, session.text.toString()))
  const state = EditorState.create({ doc: text, extensions: [...common(), EditorState.readOnly.of(true), marked(text, changed)] })
  if (past.view) past.view.setState(state)
  else past.view = new EditorView({ parent: $("past"), state })
  $("version").value = String(past.version)
  const at = history.timeOf(past.version)
  const shown = at.toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" })
  $("version-name").textContent = `Version ${past.version} of ${history.length} · ${shown}`
  $("restore").disabled = text === session.text.toString()
  showState()
}

function marked(text, lines) {
  const builder = new RangeSetBuilder()
  let start = 0
  text.split("\n").forEach((line, index) => {
    if (lines.has(index + 1)) builder.add(start, start, Decoration.line({ class: "cm-added" }))
    start += line.length + 1
  })
  return EditorView.decorations.of(builder.finish())
}

async function closePast() {
  if (past === undefined) return
  past.view?.destroy()
  past = undefined
  $("history").hidden = $("past").hidden = true
  $("editor").hidden = false
  $("history-toggle").setAttribute("aria-expanded", "false")
  showState()
  view.focus()
}

function restore() {
  const text = past.history.textOf(past.version)
  session.undo.stopCapturing()
  replaceText(session.text, text)
  closePast()
}

// -- events

const wanted = () => decodeURIComponent(location.hash.slice(1))
addEventListener("hashchange", () => wanted() && wanted() !== session?.name && open(wanted()))
$("new").addEventListener("submit", (event) => {
  event.preventDefault()
  const name = cleaned($("new-name").value)
  if (!name) return
  $("new-name").value = ""
  $("sidebar").classList.remove("open")
  location.hash = encodeURIComponent(name)
})
$("documents").addEventListener("click", () => $("sidebar").classList.remove("open"))
$("menu").addEventListener("click", () => $("sidebar").classList.toggle("open"))
$("language").addEventListener("change", () => session.settings.set("language", $("language").value))
$("undo").addEventListener("click", () => (session.undo.undo(), view.focus()))
$("redo").addEventListener("click", () => (session.undo.redo(), view.focus()))
$("history-toggle").addEventListener("click", () => (past ? closePast() : openPast()))
$("history-close").addEventListener("click", closePast)
$("version").addEventListener("input", () => showVersion(Number($("version").value)))
$("version-back").addEventListener("click", () => showVersion(past.version - 1))
$("version-on").addEventListener("click", () => showVersion(past.version + 1))
$("restore").addEventListener("click", restore)
$("me").addEventListener("change", () => {
  const name = $("me").value.trim() || user.name
  rememberName(name)
  showMe(userNamed(name))
  session.rename(user)
})

function showMe(made) {
  user = made
  $("me").value = user.name
  $("me-dot").style.background = user.color
}

window.editor = {}
showMe(user)
setInterval(list, LIST_MS)
if (!wanted()) {
  const [latest] = await documents().catch(() => [])
  history.replaceState(null, "", `${location.search}#${encodeURIComponent(latest?.name ?? "welcome")}`)
}
await open(wanted())
