// What the tests of the page share: programs that are started and surely ended, a browser, and pages that fail the test
// when anything is written to their console as an error.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

export const here = dirname(fileURLToPath(import.meta.url));
export const source = process.env.LOCKSTEP_SOURCE_DIR ?? join(here, "../..");
export const build = process.env.LOCKSTEP_BUILD_DIR ?? join(source, "build/release");
export const lockstep = process.env.LOCKSTEP_EXECUTABLE ?? join(build, "lockstep");
export const trainer = process.env.LOCKSTEP_TRAINER ?? lockstep; // where the server is built without an engine
export const kChromium = process.env.LOCKSTEP_CHROMIUM ?? "/usr/bin/chromium";

// Exits with the code that means "skipped" unless everything is there.
export function requireTools() {
  const skip = (why) => {
    console.log(`skipped: ${why}`);
    process.exit(77);
  };
  if (!existsSync(kChromium)) skip(`${kChromium} is not there (scripts/setup.sh browser)`);
  if (!existsSync(join(here, "node_modules/playwright-core"))) {
    try {
      const flags = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1"];
      execFileSync("npm", flags, { cwd: here, timeout: 180_000, stdio: "pipe" });
    } catch (problem) {
      skip(`npm cannot install playwright-core and axe-core: ${String(problem.stderr ?? problem).split("\n")[0]}`);
    }
  }
}

export function makeHome() {
  return mkdtempSync(join(tmpdir(), "lockstep-page-"));
}

const children = new Set();
let browser = null;

// A program with the home of the test; ended at the latest by endAll().
export function start(home, args, options = {}) {
  const child = spawn(args[0] === "serve" ? lockstep : trainer, args, {
    env: { ...process.env, LOCKSTEP_HOME: home },
    cwd: options.cwd ?? source,
    stdio: ["ignore", "pipe", options.quiet ? "ignore" : "inherit"],
  });
  children.add(child);
  child.done = new Promise((resolve) => child.on("exit", (code) => resolve(code)));
  child.done.then(() => children.delete(child));
  return child;
}

export async function finish(child, seconds, signal = undefined) {
  if (signal && child.exitCode === null) child.kill(signal);
  const timer = setTimeout(() => child.kill("SIGKILL"), seconds * 1000);
  const code = await child.done;
  clearTimeout(timer);
  return code;
}

export async function runToEnd(home, args, seconds = 300) {
  const child = start(home, args);
  child.stdout.resume();
  const code = await finish(child, seconds);
  assert.equal(code, 0, `lockstep ${args.join(" ")} ended with ${code}`);
}

export async function serve(home, port = 0) {
  const folder = process.env.LOCKSTEP_SERVE_PAGE ? ["--page", process.env.LOCKSTEP_SERVE_PAGE] : [];
  const child = start(home, ["serve", "--port", String(port), "--json", ...folder]);
  const line = await new Promise((resolve, reject) => {
    let text = "";
    const timer = setTimeout(() => reject(new Error("lockstep serve said nothing for 60 s")), 60_000);
    child.stdout.on("data", (part) => {
      text += part;
      if (!text.includes("\n")) return;
      clearTimeout(timer);
      resolve(text.split("\n")[0]);
    });
    child.on("exit", (code) => reject(new Error(`lockstep serve ended with ${code}`)));
  });
  const { url, port: bound } = JSON.parse(line);
  return { child, url: url.replace(/\/$/, ""), port: bound };
}

export async function theBrowser() {
  if (browser) return browser;
  const { chromium } = createRequire(join(here, "package.json"))("playwright-core");
  browser = await chromium.launch({
    executablePath: kChromium,
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
  return browser;
}

// Runs `what` with a page on `address`; fails when the page wrote an error to its console, threw, or opened a dialog.
// `expected`: patterns of console lines that this test provokes.
export async function withPage(address, options, what) {
  const { expected = [], ...context } = options;
  const owner = await (await theBrowser()).newContext({ viewport: { width: 1360, height: 860 }, ...context });
  const page = await owner.newPage();
  const problems = [];
  const note = (text) => expected.some((pattern) => pattern.test(text)) || problems.push(text);
  page.on("console", (message) => message.type() === "error" && note(message.text()));
  page.on("pageerror", (error) => note(`threw: ${error.message}`));
  page.on("dialog", (dialog) => {
    note(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.setDefaultTimeout(120_000);
  try {
    await page.goto(address);
    await what(page);
    assert.deepEqual(problems, [], "the page wrote errors to its console");
  } finally {
    await owner.close();
  }
}

export async function endAll(home) {
  await browser?.close();
  for (const child of [...children]) await finish(child, 20, "SIGINT");
  if (home) rmSync(home, { recursive: true, force: true });
}

export async function until(what, seconds = 120, pause = 100) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const value = await what();
    if (value) return value;
    if (Date.now() > end) assert.fail(`did not come true in ${seconds} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}
