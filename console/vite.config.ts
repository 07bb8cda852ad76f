import { defineConfig } from "vitest/config";

export default defineConfig({
  // The application may be mounted below a path: every address is relative to the page.
  base: "./",
  build: {
    outDir: "../src/standfast/server/console",
    emptyOutDir: true,
    assetsDir: "console",
    // A data: URL would need a weaker policy than files do.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2023",
  },
  test: { environment: "happy-dom", include: ["test/**/*.test.{ts,tsx}"], isolate: false },
});
