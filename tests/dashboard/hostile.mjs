// Texts that came from outside are shown as text, wherever they are shown.
import assert from "node:assert/strict";
import { fixture } from "./fixture.mjs";
import { kHostile, kHostileTexts } from "./records.mjs";
import { until, withPage } from "./support.mjs";

const at = (hash) => fixture.at(hash);
const kTabs = ["overview", "waterfall", "ranks", "timeline", "memory", "incidents", "diagnosis", "job"];

async function assertHarmless(page, where) {
  const found = await page.evaluate(() => ({
    hacked: window.hacked,
    scripts: [...document.querySelectorAll("script")].filter((one) => !one.src).length,
    images: document.querySelectorAll("main img").length,
    handlers: [...document.querySelectorAll("*")].filter((one) =>
      [...one.attributes].some((a) => a.name.startsWith("on")),
    ).length,
    links: [...document.querySelectorAll("a[href]")].filter((one) => !/^(#|https?:)/.test(one.getAttribute("href")))
      .length,
  }));
  assert.deepEqual(found, { hacked: undefined, scripts: 0, images: 0, handlers: 0, links: 0 }, where);
}

export const hostile = {
  "hostile names and tags are text in the list, and a click on a tag only filters": () =>
    withPage(at("#/runs"), {}, async (page) => {
      await page.locator(".row-link", { hasText: kHostileTexts[0] }).waitFor();
      await assertHarmless(page, "list");
      await page.locator("button.tag", { hasText: "javascript:" }).first().click();
      await page.waitForURL(/tag=/);
      await page.locator(".row-link", { hasText: kHostileTexts[0] }).waitFor();
      await assertHarmless(page, "filtered");
    }),

  "hostile texts are text on every page of a run": () =>
    withPage(at("#/runs"), {}, async (page) => {
      for (const tab of kTabs) {
        await page.goto(at(`#/runs/${kHostile}/${tab}`));
        await page.locator("h1").first().waitFor();
        await until(async () => (await page.locator(".skeleton").count()) === 0);
        for (const summary of await page.locator("summary").all()) await summary.click();
        await assertHarmless(page, tab);
      }
      assert.ok((await page.locator("h1").first().innerText()).includes(kHostileTexts[0]));
    }),

  "hostile addresses lead nowhere": () =>
    withPage(at(`#/runs/${encodeURIComponent(kHostileTexts[0])}`), { expected: [/40[04]/] }, async (page) => {
      await page.getByText(/there is no run/).waitFor();
      await assertHarmless(page, "unknown run");
      for (const hash of [
        "#/compare?runs=../../etc/passwd,%00",
        "#/runs/%E0%A4%A",
        "#/runs?q=%3Cscript%3E",
        "#javascript:alert(1)",
      ]) {
        await page.goto(at(hash));
        await page.locator("main").waitFor();
        await page.waitForTimeout(300);
        await assertHarmless(page, hash);
      }
    }),

  "a hostile tag that a viewer types is kept and shown as text": () =>
    withPage(at(`#/runs/${fixture.recorded}`), {}, async (page) => {
      const tag = `<b onclick="window.hacked=9">x</b>`;
      await page.getByRole("button", { name: "+ tag" }).click();
      await page.getByLabel("New tag").fill(tag);
      await page.keyboard.press("Enter");
      await page.locator(".tag", { hasText: tag }).click();
      await assertHarmless(page, "tag");
      await page.getByRole("button", { name: `Remove tag ${tag}` }).click();
      await page.locator(".tag", { hasText: tag }).waitFor({ state: "detached" });
    }),

  "the server's rules forbid scripts of others and inline ones": () =>
    withPage(at("#/runs"), { expected: [/Content Security Policy/] }, async (page) => {
      await page.locator("h1").waitFor();
      const ran = await page.evaluate(() => {
        const script = document.createElement("script");
        script.textContent = "window.inline = 1";
        document.body.append(script);
        return window.inline;
      });
      assert.equal(ran, undefined);
    }),
};
