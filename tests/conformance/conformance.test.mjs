// The suite's own command line cannot enable subscriptions, and vitest refuses test files inside
// node_modules; calling the suite from here does both.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const baseUrl = process.env.TAILRACE_URL
if (!baseUrl) {
  throw new Error("TAILRACE_URL is not set: give the base URL of a running server, e.g. http://127.0.0.1:4437")
}

runConformanceTests({ baseUrl, subscriptions: true })
