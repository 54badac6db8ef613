import { defineConfig } from "vitest/config"

// Time-outs are vitest's and the suite's own: a server that needs longer ones would not conform.
export default defineConfig({
  test: {
    include: ["conformance.test.mjs"],
    watch: false,
  },
})
