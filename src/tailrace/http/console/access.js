/** Access: the principal, users with roles and grants, access keys, signing keys, and the audit log. */

import { act, badge, button, card, code, confirm, copy, dialog, dim, facts, field, form, grid, h, select, show, tabs, time, toast } from "./ui.js"

const ROLES = [["reader", "reader: reads"], ["user", "user: also writes"], ["service", "service: also consumes and runs jobs"], ["dba", "dba: also administers"], ["system", "system: everything"]]

/** The roles that this principal may give to others. */
const roles = (app) => ROLES.filter(([name]) => name !== "system" || app.can("system"))

export default async function access(app) {
  const admin = app.can("admin")
  const tab = app.query.tab ?? (admin ? "users" : "me")
  const place = h("div", { class: "page" })
  const names = [admin && ["users", "Users"], admin && ["keys", "Access keys"], admin && ["signing", "Signing keys"], admin && app.me.access === null && ["audit", "Audit log"], ["me", "You"]].filter(Boolean)
  app.put(h("div", { class: "head" }, h("h1", {}, "Access")), tabs(["access"], {}, names, tab, "Parts of access"), place)
  await show(place, () => ({ users, keys, signing, audit, me })[tab](app, place), app.signal)
}

const lines = (text) => text.split(/[\s,]+/).filter(Boolean)

async function users(app) {
  const { users: rows } = await app.client.request("GET", "/v1/admin/users", { signal: app.signal })
  const target = (user) => `/v1/admin/users/${encodeURIComponent(user.name)}`
  const alter = (user, json, done) => act(undefined, () => app.client.request("PATCH", target(user), { json }), done).then(app.reload)
  const fields = (user) => [
    field("Role", select(roles(app), user?.role ?? "user", { name: "role" })),
    field("Password", h("input", { name: "password", type: "password", autocomplete: "new-password" }), user ? "Empty: it stays as it is." : "Empty: none; the user has access keys only."),
    field("Grants", h("textarea", { name: "access", rows: 4, spellcheck: "false", placeholder: "tables/orders\nstreams/docs/*" }, user?.access?.join("\n") ?? ""), "One per line, as in tables/orders or streams/docs/*. Empty: everything."),
  ]
  const create = () => form("New user", [field("Name", h("input", { name: "name", required: true, autofocus: true, autocomplete: "off" })), ...fields()], "Create", async ({ name, role, password, access: grants }) => {
    await app.client.request("POST", "/v1/admin/users", { json: { name, role, password: password || undefined, access: grants.trim() ? lines(grants) : null } })
    app.reload()
  })
  const change = (user) => form(`Change ${user.name}`, fields(user), "Save", async ({ role, password, access: grants }) => {
    await app.client.request("PATCH", target(user), { json: { role, access: grants.trim() ? lines(grants) : null, ...(password && { password }) } })
    app.reload()
  })
  const drop = async (user) => {
    if (!(await confirm(`Drop ${user.name}?`, "The user’s sessions and access keys end at once.", "Drop"))) return
    await act(undefined, () => app.client.request("DELETE", target(user)), "Dropped")
    app.reload()
  }
  return [
    h("div", { class: "bar" }, button("New user", create, { class: "primary" })),
    grid([
      { name: "User", value: (row) => h("b", {}, row.name) },
      { name: "Role", value: (row) => badge(row.role, row.role === "dba" || row.role === "system" ? "warn" : "") },
      { name: "Grants", class: "wrap", value: (row) => (row.access ? row.access.map((pattern) => [code(pattern), " "]) : dim("everything")) },
      { name: "Password", value: (row) => (row.password ? "yes" : dim("none")) },
      { name: "Created", value: (row) => time(row.created_at) },
      { name: "", value: (row) => row.disabled && badge("disabled", "bad") },
      { name: "", value: (row) => h("div", { class: "bar" }, button("Change", () => change(row), { class: "small" }), button(row.disabled ? "Enable" : "Disable", () => alter(row, { disabled: !row.disabled }, row.disabled ? "Enabled" : "Disabled"), { class: "small" }), button("Drop", () => drop(row), { class: "small danger" })) },
    ], rows, { label: "Users", empty: "There are no users yet." }),
  ]
}

async function keys(app) {
  const { keys: rows } = await app.client.request("GET", "/v1/admin/keys", { signal: app.signal })
  const target = (key) => `/v1/admin/keys/${encodeURIComponent(key.id)}`
  const create = async () => {
    const made = await form("New access key", [field("Principal", h("input", { name: "principal", required: true, autofocus: true }), "The name of a user, or of the program that uses the key."), field("Role", select([["", "that of the user"], ...roles(app)], "", { name: "role" }))], "Create", ({ principal, role }) => app.client.request("POST", "/v1/admin/keys", { json: { principal, role: role || null } }))
    if (!made) return
    await dialog("The new key", () => h("div", { class: "body" }, h("p", {}, "The secret is shown this once."), facts([["Access key id", code(made.id)], ["Secret", code(made.secret)]]), h("div", { class: "bar" }, button("Copy the secret", () => copy(made.secret)))))
    app.reload()
  }
  const drop = async (key) => {
    if (!(await confirm(`Delete ${key.id}?`, `Programs of ${key.principal} that use it are refused from now on.`, "Delete"))) return
    await act(undefined, () => app.client.request("DELETE", target(key)), "Deleted")
    app.reload()
  }
  const turn = (key) => act(undefined, () => app.client.request("PATCH", target(key), { json: { disabled: !key.disabled } })).then(app.reload)
  return [
    h("div", { class: "bar" }, button("New access key", create, { class: "primary" })),
    grid([
      { name: "Access key id", value: (row) => code(row.id) },
      { name: "Principal", value: (row) => row.principal },
      { name: "Role", value: (row) => badge(row.role) },
      { name: "Created", value: (row) => time(row.created_at) },
      { name: "", value: (row) => row.disabled && badge("disabled", "bad") },
      { name: "", value: (row) => h("div", { class: "bar" }, button(row.disabled ? "Enable" : "Disable", () => turn(row), { class: "small" }), button("Delete", () => drop(row), { class: "small danger" })) },
    ], rows, { label: "Access keys", empty: "There are no access keys. They are the credentials of AWS SDKs." }),
  ]
}

async function signing(app) {
  const { keys: rows } = await app.client.request("GET", "/v1/admin/signing-keys", { signal: app.signal })
  const rotate = async () => {
    if (!(await confirm("Sign with a new key?", "Webhooks are signed with a new key from now on. Receivers find it in the key set of the server.", "Rotate", "primary"))) return
    await act(undefined, () => app.client.request("POST", "/v1/admin/signing-keys/rotate", { json: {} }), "Rotated")
    app.reload()
  }
  return [h("div", { class: "bar" }, button("Rotate", rotate)), grid(Object.keys(rows[0] ?? {}).map((name) => ({ name: name.replaceAll("_", " "), value: (row) => (/_at$/.test(name) ? time(row[name]) : String(row[name] ?? "–")) })), rows, { label: "Signing keys", empty: "No webhook was signed yet." })]
}

async function audit(app) {
  const { lines } = await app.client.request("GET", "/v1/admin/audit", { signal: app.signal })
  return [
    dim("The last lines since the server started, up to 1,000. All of them are in its log (tailrace.audit)."),
    grid([
      { name: "Time", value: (row) => time(row.at) },
      { name: "Who", value: (row) => row.who },
      { name: "What", value: (row) => row.what },
      { name: "Object", class: "wrap", value: (row) => row.subject || dim("–") },
      { name: "Outcome", value: (row) => badge(row.outcome, row.outcome === "done" ? "good" : "bad") },
      { name: "From", value: (row) => row.peer ?? dim("–") },
    ], lines, { label: "Audit log", empty: "No administrative command has run since the server started." }),
  ]
}

function me({ me: { name, role, permissions, access: grants } }) {
  return card("You", facts([["Name", name], ["Role", role], ["Permissions", permissions.join(", ")], ["Grants", grants ? grants.map((pattern) => [code(pattern), " "]) : "everything"]]))
}
