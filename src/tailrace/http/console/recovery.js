/** A table's past that can be brought back: point-in-time recovery, and backups. */

import { act, badge, button, bytes, card, confirm, counted, dim, facts, field, form, grid, h, show, time, toast } from "./ui.js"

const local = (at) => new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19)

/** The card of a table's settings. */
export function recovery(app, info) {
  const place = h("div", { class: "page" })
  const load = () => show(place, () => drawn(app, info, load), app.signal)
  load()
  return card("Recovery", place)
}

async function drawn(app, info, load) {
  const { client } = app
  const [{ ContinuousBackupsDescription: found }, { BackupSummaries: backups }] = await Promise.all([
    client.call("DescribeContinuousBackups", { TableName: info.name }, { signal: app.signal }),
    client.call("ListBackups", { TableName: info.name, Limit: 100 }, { signal: app.signal }),
  ])
  const now = found.PointInTimeRecoveryDescription
  const on = now.PointInTimeRecoveryStatus === "ENABLED"
  const turn = async (event) => {
    if (on && !(await confirm("Turn off point-in-time recovery?", `${info.name} can then not be restored to a moment of the past.`, "Turn off"))) return
    await act(event, () => client.call("UpdateContinuousBackups", { TableName: info.name, PointInTimeRecoverySpecification: { PointInTimeRecoveryEnabled: !on } }), on ? "Turned off" : "Turned on")
    load()
  }
  const copied = async (title, parts, restore) => {
    const made = await form(title, [field("Into a new table", h("input", { name: "target", required: true, autofocus: true, value: `${info.name}_restored` })), parts], "Restore", async (values) => {
      await restore(values)
      return values.target
    })
    if (made) {
      toast(`Restoring ${made}`)
      app.go(["tables", made])
    }
  }
  // The field has whole seconds. Left as it is, it means the latest moment: its second may have begun before recovery was turned on.
  const latest = on ? local(new Date(now.LatestRestorableDateTime * 1000)) : ""
  const toMoment = () => copied(`Restore ${info.name} to a moment`, field("As it was at", h("input", { name: "at", type: "datetime-local", step: "1", required: true, value: latest }), "In the time of this machine."), ({ target, at }) =>
    client.call("RestoreTableToPointInTime", { SourceTableName: info.name, TargetTableName: target, ...(at === latest ? { UseLatestRestorableTime: true } : { RestoreDateTime: new Date(at).getTime() / 1000 }) }))
  const fromBackup = (row) => copied(`Restore ${row.BackupName}`, "", ({ target }) => client.call("RestoreTableFromBackup", { BackupArn: row.BackupArn, TargetTableName: target }))
  const backUp = async () => {
    const name = `${info.name}-${local(new Date()).replaceAll(/\D/g, "")}`
    if (await form(`Back up ${info.name}`, field("Name", h("input", { name: "name", required: true, value: name, autofocus: true })), "Back up", ({ name: given }) => client.call("CreateBackup", { TableName: info.name, BackupName: given }))) load()
  }
  const admin = app.can("admin")
  return [
    facts([
      ["Point-in-time recovery", on ? badge("on", "good") : badge("off")],
      on && ["Earliest moment", time(now.EarliestRestorableDateTime * 1000)],
      on && ["Latest moment", time(now.LatestRestorableDateTime * 1000)],
      on && ["Kept for", counted(now.RecoveryPeriodInDays, "day")],
    ]),
    admin && h("div", { class: "bar" }, button(on ? "Turn off" : "Turn on", turn, { class: "small" }), on && button("Restore to a moment", toMoment, { class: "small" }), button("Back up now", backUp, { class: "small" })),
    backups.length ? grid([
      { name: "Backup", value: (row) => row.BackupName },
      { name: "Made", value: (row) => time(row.BackupCreationDateTime * 1000) },
      { name: "Size", class: "num", value: (row) => bytes(row.BackupSizeBytes) },
      { name: "State", value: (row) => badge(row.BackupStatus.toLowerCase(), row.BackupStatus === "AVAILABLE" ? "good" : "warn") },
      ...(admin ? [{ name: "", value: (row) => h("div", { class: "bar" }, button("Restore", () => fromBackup(row), { class: "small" })) }] : []),
    ], backups, { label: "Backups" }) : dim("There are no backups of this table."),
  ]
}
