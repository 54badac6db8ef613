/** The shell of the console: login, navigation, the command palette. Each page is a module; the first one is loaded before the others. */

import { Client, TailraceError } from "./tailrace.js"
import { button, dialog, failure, field, h, href, icon, link, loading, toast } from "./ui.js"

const PAGES = [
  ["overview", "Overview"],
  ["streams", "Streams"],
  ["tables", "Tables"],
  ["topics", "Topics"],
  ["follow", "Follow a write"],
  ["sql", "SQL"],
  ["pipeline", "Pipeline"],
  ["access", "Access"],
]
const SESSION = "tailrace.session"
const THEME = "tailrace.theme"

const app = { client: undefined, me: undefined, can: (permission) => app.me?.permissions.includes(permission) ?? false }
const main = document.getElementById("main")
let leave = new AbortController()

// -- who is here

function remembered() {
  try {
    return JSON.parse(sessionStorage.getItem(SESSION) ?? "{}")
  } catch {
    return {}
  }
}

const remember = (what) => (what ? sessionStorage.setItem(SESSION, JSON.stringify(what)) : sessionStorage.removeItem(SESSION))

function connect({ session, token }) {
  const onSession = (now) => {
    remember(now && { session: now })
    if (!now && app.me) start()
  }
  // A page says soon that the server is gone; it asks again by itself.
  const url = new URL("..", import.meta.url).href // the server may be mounted below a path
  app.client = new Client(url, token ? { token, retryForMs: 4_000 } : { session, onSession, retryForMs: 4_000 })
}

async function start() {
  leave.abort()
  app.me = undefined
  try {
    app.me = await app.client.me()
  } catch (error) {
    if (error instanceof TailraceError && error.status === 401) return showLogin()
    drawShell()
    return main.replaceChildren(failure(error, start))
  }
  drawShell()
  await open()
  for (const [name] of PAGES) load(name).catch(() => {}) // so that they open at once, also when the server is gone for a moment
}

function showLogin(text = "") {
  drawShell()
  const error = h("p", { class: "error", role: "alert" }, text)
  const user = h("input", { name: "user", autocomplete: "username", required: true, autofocus: true })
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true })
  const token = h("input", { name: "token", type: "password", autocomplete: "off" })
  const send = h("button", { class: "primary" }, "Log in")
  const attempt = async (event, work) => {
    event.preventDefault()
    send.disabled = true
    error.textContent = ""
    try {
      await work()
      await start()
    } catch (problem) {
      error.textContent = problem.status === 401 ? "The user or the password is wrong." : problem.message
    } finally {
      send.disabled = false
    }
  }
  const byPassword = (event) =>
    attempt(event, async () => {
      connect({})
      await app.client.login(user.value, password.value)
    })
  const byToken = (event) =>
    attempt(event, async () => {
      remember({ token: token.value })
      connect({ token: token.value })
      try {
        await app.client.me()
      } catch (problem) {
        remember()
        throw problem.status === 401 ? new Error("The server does not accept this token.") : problem
      }
    })
  main.replaceChildren(
    h("div", { class: "login" },
      h("h1", {}, "Log in"),
      h("form", { onsubmit: byPassword }, field("User", user), field("Password", password), error, send),
      h("details", {}, h("summary", {}, "Use a token instead"), h("form", { onsubmit: byToken }, field("Token", token, "The server’s token, or one of your identity provider."), h("button", {}, "Use token"))),
    ),
  )
  user.focus()
}

// -- the shell

function theme(set) {
  if (set) localStorage.setItem(THEME, set)
  const chosen = localStorage.getItem(THEME) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")
  document.documentElement.dataset.theme = chosen
  return chosen
}

function drawShell() {
  const nav = document.getElementById("nav")
  const known = !!app.me
  const items = PAGES.filter(() => known).map(([name, text]) => h("a", { href: `#/${name}`, "data-page": name }, icon(name), h("span", {}, text.split(" ")[0], h("span", { class: "long" }, text.slice(text.split(" ")[0].length)))))
  nav.replaceChildren(nav.querySelector(".brand"), ...items)
  const dark = theme() === "dark"
  const switchTheme = button(icon(dark ? "sun" : "moon"), () => (theme(dark ? "light" : "dark"), drawShell(), markPage()), { class: "plain", "aria-label": dark ? "Light colours" : "Dark colours" })
  const search = known && button([icon("search"), h("span", {}, "Find anything"), h("kbd", {}, "Ctrl K")], palette, { class: "find", title: "Find anything" })
  const who = known && h("span", { class: "who", title: `Role ${app.me.role}` }, app.me.name, app.me.role && h("small", {}, app.me.role))
  const out = known && (app.client.session || remembered().token) && button("Log out", logout, { class: "plain" })
  document.getElementById("top").replaceChildren(...[h("div", { id: "crumbs", class: "crumbs" }), search, who, switchTheme, out].filter(Boolean))
}

async function logout() {
  leave.abort()
  app.me = undefined
  try {
    await app.client.logout()
  } catch (error) {
    toast(error.message, "bad")
  }
  remember()
  connect({})
  go(["overview"], {}, { quiet: true })
  showLogin()
}

function markPage() {
  const { parts } = address()
  for (const item of document.querySelectorAll("#nav a")) {
    if (item.dataset.page === parts[0]) item.setAttribute("aria-current", "page")
    else item.removeAttribute("aria-current")
  }
  const [name, ...rest] = parts
  const title = PAGES.find(([page]) => page === name)?.[1] ?? name
  const crumbs = [rest.length ? link([name], title) : h("b", {}, title), ...rest.map((part, at) => [h("i", {}, "/"), at === rest.length - 1 ? h("b", { title: part }, part) : link(parts.slice(0, at + 2), part)])]
  document.getElementById("crumbs")?.replaceChildren(...crumbs.flat())
  document.title = `${rest.at(-1) ?? title} · Tailrace`
}

// -- pages

function address() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?")
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent)
  return { parts: parts.length ? parts : ["overview"], query: Object.fromEntries(new URLSearchParams(search)) }
}

const load = (name) =>
  import(`./${name}.js`).catch(() => {
    throw new Error("The console could not be loaded in full: the server cannot be reached, or has another version by now. Reload this page.")
  })

async function open() {
  leave.abort()
  leave = new AbortController()
  const { signal } = leave
  const { parts, query } = address()
  markPage()
  const [name, ...rest] = parts
  if (!PAGES.some(([page]) => page === name)) return main.replaceChildren(failure(new Error(`There is no page ${name}.`)))
  const page = h("div", { class: `page ${name}` }, loading())
  main.replaceChildren(page)
  main.scrollTop = 0
  try {
    const module = await load(name)
    if (signal.aborted) return
    const put = (...content) => signal.aborted || page.replaceChildren(...content.flat(Infinity).filter(Boolean))
    await module.default({ ...app, client: app.client, page, put, parts: rest, query, signal, go, reload: open })
  } catch (error) {
    if (signal.aborted) return
    if (error?.status === 401) return showLogin("The session has ended; log in again.")
    page.replaceChildren(failure(error, open))
  }
}

/** Open a page; `replace` leaves no entry in the history, and `quiet` draws nothing. */
function go(parts, query, { replace = false, quiet = false } = {}) {
  const to = href(parts, query)
  if (quiet) return history.replaceState(null, "", to)
  if (replace) history.replaceState(null, "", to)
  else if (location.hash !== to) return void (location.hash = to)
  open()
}

// -- the command palette

let paletteOpen = false

async function palette() {
  if (!app.me || paletteOpen) return
  paletteOpen = true
  const input = h("input", { type: "search", placeholder: "A page, a stream, a table, a topic, a key…", "aria-label": "Find", role: "combobox", "aria-expanded": "true", "aria-controls": "found", autofocus: true, autocomplete: "off", spellcheck: "false" })
  const list = h("ul", { id: "found", role: "listbox", "aria-label": "Found" })
  let found = []
  let at = 0
  let turn = 0
  let timer
  const mark = () => {
    ;[...list.children].forEach((item, index) => item.setAttribute("aria-selected", index === at))
    list.children[at]?.scrollIntoView({ block: "nearest" })
    if (list.children[at]) input.setAttribute("aria-activedescendant", `found-${at}`)
  }
  const draw = (next) => {
    found = next
    at = 0
    list.replaceChildren(...found.map((each, index) => h("li", { role: "option", id: `found-${index}`, onclick: () => pick(each) }, h("span", { class: "kind" }, each.kind), h("span", { class: "name" }, each.name))))
    if (!found.length) list.replaceChildren(h("li", { class: "none", role: "option", "aria-selected": "false" }, "Nothing found"))
    mark()
  }
  let pick = () => {}
  const look = async () => {
    const mine = ++turn
    const text = input.value.trim()
    const pages = PAGES.filter(([, name]) => name.toLowerCase().includes(text.toLowerCase())).map(([name, title]) => ({ kind: "page", name: title, to: [name] }))
    if (mine === turn) draw(pages)
    const named = await search(text)
    if (mine === turn) draw([...pages, ...named])
  }
  input.addEventListener("input", () => {
    clearTimeout(timer)
    timer = setTimeout(look, 80)
  })
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key]
    if (step && found.length) {
      event.preventDefault()
      at = (at + step + found.length) % found.length
      mark()
    } else if (event.key === "Enter" && found[at]) {
      event.preventDefault()
      pick(found[at])
    }
  })
  look()
  const chosen = await dialog("Find", (close) => {
    pick = close
    return [h("div", { class: "body" }, input), list]
  }, { class: "palette" })
  paletteOpen = false
  clearTimeout(timer)
  if (chosen) go(chosen.to, chosen.query)
}

/** Streams, tables and topics with the text in their names, and items with it as their key. */
async function search(text) {
  const { client } = app
  const lower = text.toLowerCase()
  const quiet = (promise) => promise.catch(() => undefined)
  const [streams, tables, topics] = await Promise.all([
    quiet(client.streams({ search: text || undefined, limit: 8 })),
    quiet(client.tables({ search: text || undefined, limit: 8 })),
    quiet(client.topics()),
  ])
  const found = [
    ...(tables?.tables ?? []).map(({ name }) => ({ kind: "table", name, to: ["tables", name] })),
    ...(streams?.streams ?? []).map(({ path }) => ({ kind: "stream", name: path, to: ["streams", path] })),
    ...(topics ?? []).filter(({ name }) => name.toLowerCase().includes(lower)).slice(0, 8).map(({ name }) => ({ kind: "topic", name, to: ["topics", name] })),
  ]
  return text ? [...found, ...(await keys(text))] : found
}

/** Items whose partition key is the text: `orders o-1`, or `o-1` in the first tables. */
async function keys(text) {
  const { client } = app
  const [first, ...others] = text.split(/\s+/)
  const one = others.length ? await client.tables({ search: first, limit: 3 }).catch(() => undefined) : undefined
  const wanted = one?.tables?.length ? others.join(" ") : text
  const tables = one?.tables?.length ? one.tables : ((await client.tables({ limit: 12 }).catch(() => undefined))?.tables ?? [])
  const each = tables.map(async (table) => {
    const part = table.partition_key
    if (part.type !== "S" && (part.type !== "N" || !/^-?\d+(\.\d+)?$/.test(wanted))) return []
    const value = part.type === "N" ? Number(wanted) : wanted
    const page = await client.table(table.name).query({ key: "#k = :k", names: { "#k": part.name }, values: { ":k": value }, limit: 3 }).catch(() => undefined)
    return (page?.items ?? []).map((item) => {
      const key = Object.fromEntries([table.partition_key, table.sort_key].filter(Boolean).map(({ name }) => [name, item[name]]))
      return { kind: "item", name: `${table.name} ${Object.values(key).join(" / ")}`, to: ["tables", table.name, "item"], query: { key: JSON.stringify(key) } }
    })
  })
  return (await Promise.all(each)).flat()
}

/** Say so while the server cannot be reached. Lists that follow something continue by themselves; what has failed is loaded again. */
async function watch() {
  const banner = h("div", { class: "offline", role: "status", hidden: true }, "The server cannot be reached. Trying again…")
  document.body.append(banner)
  for (;;) {
    await new Promise((done) => setTimeout(done, 5_000))
    if (document.hidden) continue
    const away = !banner.hidden
    banner.hidden = await app.client.request("GET", "/healthz", { retryForMs: 0, timeoutMs: 10_000 }).then(() => true, (error) => error.status !== 0)
    if (away && banner.hidden) for (const again of main.querySelectorAll(".state.bad button")) again.click() // the rest of the page stays as it is
  }
}

// -- begin

addEventListener("hashchange", () => app.me && open())
addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault()
    palette()
  } else if (event.key === "/" && !event.target.closest("input,textarea,select,dialog")) {
    const input = main.querySelector("input[type=search]")
    if (input) {
      event.preventDefault()
      input.focus()
    }
  } else if (event.altKey && /^Digit[1-8]$/.test(event.code) && app.me) {
    event.preventDefault()
    go([PAGES[event.code.at(-1) - 1][0]])
  }
})
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (drawShell(), markPage()))
theme()
connect(remembered())
start()
watch()
