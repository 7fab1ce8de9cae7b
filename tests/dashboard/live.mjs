// A run that goes on: new points without reloading, connections that are lost and come back, the end.
import assert from "node:assert/strict";
import { fixture } from "./fixture.mjs";
import { until, withPage } from "./support.mjs";

const at = (hash) => fixture.at(hash);
const lastStep = async (page) => {
  const label = await page.getByRole("img", { name: /^Loss\./ }).getAttribute("aria-label");
  return Number(label.match(/to ([\d,]+), last/)?.[1].replace(/,/g, "") ?? 0);
};

export const live = {
  "a new point appears on a live run's charts without reloading and without asking for the curve again": () =>
    withPage(at(`#/runs/${fixture.live}`), {}, async (page) => {
      await page.locator(".live-live").waitFor();
      const first = await until(() => lastStep(page));
      let asked = 0;
      page.on("request", (request) => request.url().includes("/series") && asked++);
      let loads = 0;
      page.on("load", () => loads++);
      await until(async () => (await lastStep(page)) >= first + 3);
      assert.equal(asked, 0);
      assert.equal(loads, 0);
      const tile = await page.locator(".tile", { hasText: "Step" }).first().innerText();
      assert.ok(Number(tile.match(/[\d,]+/)[0].replace(/,/g, "")) >= first + 3);
    }),

  "a tick is at most 2 KB": async () => {
    const answer = await fetch(`${fixture.url}/api/v1/runs/${fixture.live}/stream`);
    const reader = answer.body.getReader();
    let text = "";
    while ((text.match(/event: tick/g) ?? []).length < 4) text += new TextDecoder().decode((await reader.read()).value);
    await reader.cancel();
    const ticks = text.split("\n\n").filter((message) => message.includes("event: tick"));
    const largest = Math.max(...ticks.map((tick) => Buffer.byteLength(tick)));
    assert.ok(ticks.length >= 3 && largest <= 2048, `${largest} bytes`);
    console.log(`# largest of ${ticks.length} ticks: ${largest} bytes`);
  },

  "the list of runs changes by itself while a run goes on": () =>
    withPage(at("#/runs"), {}, async (page) => {
      await page.locator(".live-live").waitFor();
      const row = page.getByRole("row", { name: /live-run/ });
      const steps = async () => Number((await row.locator("[data-label=Steps]").innerText()).replace(/,/g, ""));
      const before = await steps();
      await until(async () => (await steps()) > before);
    }),

  "a server that goes away is said, and the page comes back with it": () =>
    withPage(at(`#/runs/${fixture.live}`), { expected: [/ERR_CONNECTION|Failed to load|net::/] }, async (page) => {
      await page.locator(".live-live").waitFor();
      const { port } = fixture;
      await fixture.stopServer();
      await page.locator(".live-stale").waitFor();
      await fixture.startServer(port);
      await page.locator(".live-live").waitFor({ timeout: 120_000 });
      const first = await until(() => lastStep(page));
      await until(async () => (await lastStep(page)) > first);
    }),

  "the end of a run is said": () =>
    withPage(at(`#/runs/${fixture.live}`), {}, async (page) => {
      await page.locator(".live-live").waitFor();
      await fixture.stopTraining();
      await page.locator(".live-ended").waitFor({ timeout: 120_000 });
      await page.locator(".status-interrupted, .status-done, .status-failed").first().waitFor();
    }),
};
