// node bench/dashboard/run.mjs [--store FOLDER] [--rounds 11]: the page of a run with 1M points per curve, in a real browser
// against the real server. Writes bench/reports/dashboard.md.
//
// The store is written by bench/store (build/bench/store_bench); with --store one that is there is used.
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { cpus, loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { endAll, lockstep, requireTools, serve, source, theBrowser } from "../../tests/dashboard/support.mjs";

const kPoints = 1_000_000;
const kMetrics = 4;
const option = (name, fallback) => {
  const at = process.argv.indexOf(name);
  return at < 0 ? fallback : process.argv[at + 1];
};
const rounds = Number(option("--rounds", 11));

requireTools();
const given = option("--store", "");
const home = given || mkdtempSync(join(tmpdir(), "lockstep-bench-page-"));
if (!existsSync(join(home, "runs.db"))) {
  const writer = process.env.LOCKSTEP_STORE_BENCH ?? join(source, "build/bench/store_bench");
  execFileSync(writer, ["many", home, "1", String(kMetrics), String(kPoints)], { stdio: "inherit", timeout: 900_000 });
}

// Notes, on the page's own clock, when a chart shows steps up to `last` and has been painted.
const kWatcher = () => {
  window.shown = [];
  new MutationObserver(() => {
    for (const plot of document.querySelectorAll(".chart-plot[aria-label]")) {
      const label = plot.getAttribute("aria-label");
      if (!/ last /.test(label) || plot.seen === label || !plot.querySelector("canvas")) continue;
      plot.seen = label;
      requestAnimationFrame(() => setTimeout(() => window.shown.push({ label, time: performance.now() })));
    }
  }).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["aria-label"] });
  window.addEventListener(
    "mouseup",
    () => {
      window.released = performance.now();
    },
    true,
  );
};

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
const most = (values) => Math.max(...values);

async function firstPaint(address) {
  const context = await (await theBrowser()).newContext({ viewport: { width: 1360, height: 860 } }); // an empty cache
  const page = await context.newPage();
  await page.addInitScript(kWatcher);
  // Of the page's own thread, in CPU time: it stays the same on a machine that does other things too.
  const session = await context.newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  const cpuMs = async () => {
    const { metrics } = await session.send("Performance.getMetrics");
    return 1000 * metrics.find((one) => one.name === "TaskDuration").value;
  };
  await page.goto(address);
  await page.waitForFunction(() => window.shown?.length >= 3);
  const found = await page.evaluate(() => ({
    contentful: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0,
    charts: window.shown.map((one) => one.time),
    bytes: performance.getEntriesByType("resource").reduce((sum, one) => sum + one.encodedBodySize, 0),
  }));
  return { page, context, found, cpuMs };
}

async function zoom(page, cpuMs, from, to) {
  const before = await cpuMs();
  const over = await page.locator(".chart-plot .u-over").first().boundingBox();
  await page.evaluate(() => {
    window.shown = [];
    window.released = 0;
  });
  await page.mouse.move(over.x + over.width * from, over.y + 50);
  await page.mouse.down();
  await page.mouse.move(over.x + over.width * to, over.y + 60, { steps: 3 });
  await page.mouse.up();
  await page.waitForFunction(() => window.shown.length >= 1);
  const one = await page.evaluate(() => window.shown[0].time - window.released);
  await page.waitForFunction(() => window.shown.length >= 3);
  const all = await page.evaluate(() => window.shown[2].time - window.released);
  return { one, all, cpu: (await cpuMs()) - before };
}

const load = loadavg()[0].toFixed(1);
const server = await serve(home);
const { runs } = await (await fetch(`${server.url}/api/v1/runs`)).json();
const address = `${server.url}/#/runs/${runs[0].id}`;
const paints = [];
const contentful = [];
const zooms = [];
const allZooms = [];
const paintCpu = [];
const zoomCpu = [];
let bytes = 0;
for (let round = 0; round < rounds; round++) {
  const { page, context, found, cpuMs } = await firstPaint(address);
  paintCpu.push(await cpuMs());
  contentful.push(found.contentful);
  paints.push(found.charts[2]);
  bytes = found.bytes;
  for (const [from, to] of [
    [0.3, 0.6],
    [0.4, 0.7],
  ]) {
    const took = await zoom(page, cpuMs, from, to);
    zoomCpu.push(took.cpu);
    zooms.push(took.one);
    allZooms.push(took.all);
  }
  await context.close();
}
const apiMs = [];
for (let round = 0; round < 21; round++) {
  const begin = performance.now();
  await (
    await fetch(`${server.url}/api/v1/runs/${runs[0].id}/series?metric=loss&points=680&from=300000&to=600000`)
  ).text();
  apiMs.push(performance.now() - begin);
}
const page = await (await theBrowser()).newPage();
const version = (await theBrowser()).version();
await page.close();
await endAll(given ? "" : home);
if (!given) rmSync(home, { recursive: true, force: true });

const row = (what, value, limit) => `| ${what} | ${value} | ${limit} |`;
const ms = (values) => `${median(values).toFixed(0)} ms (worst ${most(values).toFixed(0)})`;
const revision = execFileSync("git", ["rev-parse", "--short", "HEAD"], { cwd: source }).toString().trim();
const report = [
  "# The page at 1M points",
  "",
  `Made by \`make bench-dashboard\` on ${new Date().toISOString().slice(0, 10)} at ${revision}: ${cpus()[0].model.trim()}, ${cpus().length} cores, Chromium ${version} headless`,
  `with an empty cache, \`${lockstep.replace(`${source}/`, "")} serve\` on the same machine, a run with curves of ${kPoints.toLocaleString("en-US")} points each, three of`,
  `them on the first page. Medians of ${rounds} cold loads and ${zooms.length} zooms.`,
  "",
  `Load of the machine while it ran: ${load} (1 means one busy core).`,
  "",
  "| what | measured | wanted |",
  "|---|---|---|",
  row("first contentful paint", ms(contentful), ""),
  row("first paint of three curves of 1M points, cold", ms(paints), "700 ms"),
  row("zoom: from letting go of the mouse to the curve that was dragged", ms(zooms), "60 ms"),
  row("zoom: to all three curves", ms(allZooms), ""),
  row("CPU time of the page's thread until the first paint of the curves", ms(paintCpu), ""),
  row("CPU time of the page's thread for a zoom of three curves, the drag included", ms(zoomCpu), ""),
  row("of it, the server's answer (680 buckets of 300,000 points)", ms(apiMs), ""),
  row("page and first answers over the wire", `${(bytes / 1024).toFixed(1)} KiB`, "the page alone 120 KB"),
  "",
  "Ticks and the size of the page are checked by tests/dashboard (`make test-dashboard`).",
  "",
];
writeFileSync(join(source, "bench/reports/dashboard.md"), report.join("\n"));
console.log(report.join("\n"));
