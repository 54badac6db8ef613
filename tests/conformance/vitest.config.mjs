import { defineConfig } from "vitest/config"

// Vitest's own limit is 5 s for a test, and the suite has tests that make 100,000 assertions: on a busy machine Node alone
// needs longer for them. The suite's tests that are about time carry limits of their own, which stay.
export default defineConfig({
  test: {
    include: ["conformance.test.mjs"],
    watch: false,
    testTimeout: 240_000,
    hookTimeout: 240_000,
  },
})
