// Builds the page into the Python package that serves it: static files, no inline script or style,
// nothing loaded from elsewhere, so that the strict Content-Security-Policy of the backend holds.
import { defineConfig } from "vite";

export default defineConfig({
  base: "/",
  build: {
    outDir: "../flameherd_backend/static",
    emptyOutDir: true,
    target: "es2022",
    // A data: URL would need font-src or img-src exceptions; files do not.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    license: { fileName: "licences.md" },
  },
});
