// Starts dynalite on its LevelDB files: node dynalite.mjs DATA_DIRECTORY
//
// Tables are there at once: how long a table stays in CREATING is for tests of clients, and is not measured.
import dynalite from "dynalite"

const [path] = process.argv.slice(2)
if (!path) throw new Error("usage: node dynalite.mjs DATA_DIRECTORY")

const server = dynalite({ path, createTableMs: 0, deleteTableMs: 0, updateTableMs: 0 })
server.listen(0, "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${server.address().port}`))

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, () => process.exit(0))
}
