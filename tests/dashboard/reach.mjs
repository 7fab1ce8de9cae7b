// For everybody: colours, widths, keyboard, paper, screen readers.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fixture } from "./fixture.mjs";
import { kHostile, kRich } from "./records.mjs";
import { here, until, withPage } from "./support.mjs";

const at = (hash) => fixture.at(hash);
const kTabs = ["overview", "waterfall", "ranks", "timeline", "memory", "incidents", "diagnosis", "job"];

const everyPage = () => [
  "#/runs",
  "#/studies",
  "#/cluster",
  `#/studies/${fixture.study}`,
  `#/compare?runs=${kRich},${fixture.recorded}`,
  ...kTabs.map((tab) => `#/runs/${kRich}/${tab}`),
  `#/runs/${kHostile}/incidents`,
  `#/runs/${fixture.live}`,
];

async function settled(page) {
  await page.locator("h1").first().waitFor();
  await until(async () => (await page.locator(".skeleton, .progress").count()) === 0);
}

async function seriousFindings(page, where) {
  await page.evaluate(readFileSync(join(here, "node_modules/axe-core/axe.min.js"), "utf8"));
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return violations
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .map(
      (one) =>
        `${where}: ${one.id}: ${one.nodes
          .map((node) => `${node.target.join(" ")} ${node.any[0]?.message ?? ""}`)
          .slice(0, 3)
          .join(" | ")}`,
    );
}

const background = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
const theme = (page) => page.evaluate(() => document.documentElement.dataset.theme);

function accessible(colorScheme) {
  return () =>
    withPage(at("#/runs"), { colorScheme, bypassCSP: true }, async (page) => {
      const found = [];
      for (const hash of everyPage()) {
        await page.goto(at(hash));
        await settled(page);
        found.push(...(await seriousFindings(page, hash)));
      }
      await page.keyboard.press("?");
      await page.getByRole("dialog").waitFor();
      found.push(...(await seriousFindings(page, "help")));
      assert.deepEqual(found, []);
    });
}

export const reach = {
  "colours follow the system; the choice of the reader wins and is remembered": () =>
    withPage(at("#/runs"), { colorScheme: "dark" }, async (page) => {
      await page.locator("h1").waitFor();
      assert.equal(await theme(page), "dark");
      const dark = await background(page);
      await page.emulateMedia({ colorScheme: "light" });
      await until(async () => (await theme(page)) === "light");
      assert.notEqual(await background(page), dark);
      const button = page.getByRole("button", { name: /^Colours/ });
      await button.click(); // system -> light
      await button.click(); // light -> dark
      assert.equal(await background(page), dark);
      await page.reload();
      await page.locator("h1").waitFor();
      assert.equal(await theme(page), "dark");
    }),

  "charts take the colours of the dark page": () =>
    withPage(at(`#/runs/${kRich}`), { colorScheme: "light" }, async (page) => {
      const chart = page.getByRole("img", { name: /^Loss/ });
      await chart.waitFor();
      await settled(page);
      const light = await chart.screenshot();
      await page.keyboard.press("t");
      await page.keyboard.press("t");
      assert.equal(await theme(page), "dark");
      await until(async () => !(await chart.screenshot()).equals(light));
    }),

  "no page scrolls sideways on a phone of 360 pixels": () =>
    withPage(at("#/runs"), { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true }, async (page) => {
      const wide = [];
      for (const hash of everyPage()) {
        await page.goto(at(hash));
        await settled(page);
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        if (width > 360) wide.push(`${hash}: ${width}`);
      }
      assert.deepEqual(wide, []);
    }),

  "the keyboard reaches everything: j k Enter, x v, /, 1 to 8, ?, Escape": () =>
    withPage(at("#/runs"), {}, async (page) => {
      await page.getByRole("link", { name: "two-stages" }).waitFor();
      await page.keyboard.press("j");
      await page.keyboard.press("j");
      await page.keyboard.press("k");
      const focused = () => page.evaluate(() => document.activeElement?.textContent);
      const first = await page.locator("[data-row='0'] .row-link").innerText();
      assert.equal(await focused(), first);
      await page.keyboard.press("x");
      await page.keyboard.press("j");
      await page.keyboard.press("x");
      await page.getByText("2 selected").waitFor();
      await page.keyboard.press("v");
      await page.getByRole("heading", { name: "Compare 2 runs" }).waitFor();
      await page.keyboard.press("r");
      await page.getByRole("heading", { name: "Runs" }).waitFor();
      await page.getByRole("link", { name: "two-stages" }).waitFor();
      await page.keyboard.press("/");
      await page.keyboard.type("two-stages");
      await page.getByRole("link", { name: "live-run" }).waitFor({ state: "detached" });
      await page.keyboard.press("Escape");
      await page.keyboard.press("j");
      await page.keyboard.press("Enter");
      await page.getByRole("heading", { name: "two-stages" }).waitFor();
      for (const [index, tab] of kTabs.entries()) {
        await page.keyboard.press(String(index + 1));
        await page.waitForURL(new RegExp(`/${tab}`));
      }
      await page.keyboard.press("?");
      await page.getByRole("dialog", { name: "Keys" }).waitFor();
      await page.keyboard.press("Escape");
      await page.getByRole("dialog").waitFor({ state: "detached" });
    }),

  "focus is visible, and the first key leads past the navigation": () =>
    withPage(at("#/runs"), {}, async (page) => {
      await page.getByRole("link", { name: "two-stages" }).waitFor();
      await page.keyboard.press("Tab");
      assert.equal(await page.evaluate(() => document.activeElement?.textContent.trim()), "Skip to content");
      const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
      assert.notEqual(outline, "none");
      await page.keyboard.press("Enter");
      assert.equal(await page.evaluate(() => document.activeElement?.id), "main");
    }),

  "on paper the page is light and without its controls": () =>
    withPage(at(`#/runs/${kRich}/waterfall`), { colorScheme: "dark" }, async (page) => {
      await page.locator(".waterfall").waitFor();
      const pdf = await page.pdf({ format: "A4" }); // fires beforeprint and afterprint
      assert.ok(pdf.length > 10_000);
      assert.equal(await theme(page), "dark");
      await page.emulateMedia({ media: "print" });
      assert.ok(await page.locator(".top").isHidden());
      assert.ok(await page.locator(".tabs").isHidden());
      assert.ok(await page.locator(".waterfall").isVisible());
      await page.evaluate(() => window.dispatchEvent(new Event("beforeprint")));
      assert.equal(await theme(page), "light");
      await page.evaluate(() => window.dispatchEvent(new Event("afterprint")));
      assert.equal(await theme(page), "dark");
    }),

  "nothing moves where the reader asked for less motion": () =>
    withPage(at(`#/runs/${fixture.live}`), { reducedMotion: "reduce" }, async (page) => {
      await page.locator(".live-live").waitFor();
      const name = await page.locator(".live-dot").evaluate((dot) => getComputedStyle(dot).animationName);
      assert.equal(name, "none");
    }),

  "axe finds nothing serious on any page in light colours": accessible("light"),
  "axe finds nothing serious on any page in dark colours": accessible("dark"),

  "the whole page is at most 120 KB over the wire, and asks no other machine": () =>
    withPage("about:blank", {}, async (page) => {
      const hosts = new Set();
      let bytes = 0;
      const sizes = [];
      page.on("response", (response) => {
        hosts.add(new URL(response.url()).host);
        if (!response.url().includes("/api/"))
          sizes.push(
            response
              .request()
              .sizes()
              .then((size) => {
                bytes += size.responseBodySize;
              }),
          );
      });
      await page.goto(at("#/runs"));
      await page.getByRole("link", { name: "two-stages" }).waitFor();
      await Promise.all(sizes);
      assert.deepEqual([...hosts], [new URL(fixture.url).host]);
      assert.ok(bytes > 10_000 && bytes <= 120 * 1024, `${bytes} bytes`);
      console.log(`# the page: ${bytes} bytes over the wire`);
    }),
};
