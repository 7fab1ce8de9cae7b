import { defineConfig } from "vite";

// Relative addresses: the page also works behind a proxy, under any path. One script and one style sheet: fewer requests
// before the first paint than any split would save.
export default defineConfig({
  base: "./",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    target: "es2020",
    outDir: "dist",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    rollupOptions: { output: { manualChunks: undefined } },
  },
});
