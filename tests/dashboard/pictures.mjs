// node pictures.mjs [FOLDER]: the pictures of docs/how-to/dashboard.md, of the same runs as the tests look at.
import { rmSync } from "node:fs";
import { join } from "node:path";
import { fixture } from "./fixture.mjs";
import { kHostile, kRich, kSteps } from "./records.mjs";
import { requireTools, source, until, withPage } from "./support.mjs";

requireTools();
const folder = process.argv[2] ?? join(source, "docs/images/dashboard");
const kLongest = 1040; // pixels that a picture is high
const kDark = { colorScheme: "dark" };

const pictures = () => ({
  runs: { hash: "#/runs", ready: ".row-link" },
  run: { hash: `#/runs/${kRich}`, ready: ".chart canvas" },
  compare: { hash: `#/compare?runs=${fixture.recorded},${fixture.live}`, ready: ".chart canvas" },
  waterfall: { hash: `#/runs/${kRich}/waterfall`, ready: ".waterfall" },
  ranks: { hash: `#/runs/${kRich}/ranks`, ready: ".heat-plot canvas" },
  timeline: { hash: `#/runs/${kRich}/timeline?step=${kSteps}`, ready: ".tl-plot canvas" },
  memory: { hash: `#/runs/${kRich}/memory`, ready: ".mem-row" },
  incidents: { hash: `#/runs/${kRich}/incidents`, ready: ".event-line" },
  diagnosis: { hash: `#/runs/${kRich}/diagnosis`, ready: ".finding, .empty" },
  study: { hash: `#/studies/${fixture.study}`, ready: ".chart canvas" },
  cluster: { hash: "#/cluster", ready: ".nodes .card" },
  live: { hash: `#/runs/${fixture.live}`, ready: ".chart canvas", options: kDark },
  phone: {
    hash: `#/runs/${kRich}`,
    ready: ".chart canvas",
    options: { ...kDark, viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true },
  },
});

async function take(name, { hash, ready, options = {} }) {
  await withPage(fixture.at(hash), { viewport: { width: 1280, height: 420 }, ...options }, async (page) => {
    await page.locator(ready).first().waitFor();
    await until(async () => (await page.locator(".skeleton, .progress").count()) === 0);
    await page.waitForTimeout(500); // charts are drawn after their data came
    const length = await page.evaluate(() => document.querySelector("main").scrollHeight + 80);
    const { width, height } = page.viewportSize();
    await page.setViewportSize({ width, height: Math.max(height, Math.min(length, kLongest)) });
    await page.screenshot({ path: join(folder, `${name}.png`), animations: "disabled" });
    console.log(`${name}.png`);
  });
}

try {
  await fixture.begin();
  rmSync(join(fixture.home, "runs", kHostile), { recursive: true });
  for (const [name, picture] of Object.entries(pictures())) await take(name, picture);
} finally {
  await fixture.end();
}
