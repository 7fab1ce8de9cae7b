// Every page shows what the store holds.
import assert from "node:assert/strict";
import { fixture } from "./fixture.mjs";
import { kPeakBytes, kRich, kSlowRank, kSteps } from "./records.mjs";
import { until, withPage } from "./support.mjs";

const at = (hash) => fixture.at(hash);
const text = (page, selector) => page.locator(selector).first().innerText();

// Draws something: not all of its pixels are alike.
const isDrawn = (page, selector) =>
  page
    .locator(selector)
    .first()
    .evaluate((canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const seen = new Set();
      for (let i = 0; i < data.length; i += 4)
        seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2] | (data[i + 3] << 24));
      return seen.size > 3;
    });

export const pages = {
  "runs are listed with status, rate and what was predicted": () =>
    withPage(at("#/runs"), {}, async (page) => {
      await page.getByRole("link", { name: "two-stages" }).waitFor();
      const row = page.getByRole("row", { name: /two-stages/ });
      assert.match(await row.innerText(), /done/);
      assert.match(await row.innerText(), /−7\.4%/); // 1 / 1.08 of what was predicted
      assert.match(await page.getByRole("row", { name: /live-run/ }).innerText(), /running/);
    }),

  "runs are filtered by status and found by a word": () =>
    withPage(at("#/runs"), {}, async (page) => {
      await page.getByRole("link", { name: "two-stages" }).waitFor();
      await page.getByRole("button", { name: "running", exact: true }).click();
      await page.getByRole("link", { name: "two-stages" }).waitFor({ state: "detached" });
      await page.getByRole("link", { name: "live-run" }).waitFor();
      assert.match(page.url(), /status=running/);
      await page.getByRole("button", { name: "all", exact: true }).click();
      await page.getByRole("searchbox").fill("two-st");
      await page.getByRole("link", { name: "live-run" }).waitFor({ state: "detached" });
      await page.getByRole("link", { name: "two-stages" }).waitFor();
    }),

  "tags are added, kept by the server and removed": () =>
    withPage(at(`#/runs/${fixture.recorded}`), {}, async (page) => {
      await page.getByRole("button", { name: "+ tag" }).click();
      await page.getByLabel("New tag").fill("week 47");
      await page.keyboard.press("Enter");
      await page.getByRole("button", { name: "Remove tag week 47" }).waitFor();
      const tags = async () => (await fixture.ask(`/runs/${fixture.recorded}`)).run.tags;
      assert.deepEqual(await tags(), ["week 47"]);
      await page.goto(at("#/runs?tag=week%2047"));
      await page.getByRole("link", { name: "gpt-bytes-demo" }).waitFor();
      assert.equal(await page.getByRole("link", { name: "two-stages" }).count(), 0);
      await page.goto(at(`#/runs/${fixture.recorded}`));
      await page.getByRole("button", { name: "Remove tag week 47" }).click();
      await until(async () => (await tags()).length === 0);
    }),

  "two runs are compared: what differs, and their curves over each other": () =>
    withPage(at("#/runs"), {}, async (page) => {
      await page.getByRole("checkbox", { name: /Select two-stages/ }).check();
      assert.ok(await page.getByRole("button", { name: "Compare", exact: true }).isDisabled());
      await page.getByRole("checkbox", { name: /Select gpt-bytes-demo/ }).check();
      await page.getByRole("button", { name: "Compare", exact: true }).click();
      await page.getByRole("heading", { name: "Compare 2 runs" }).waitFor();
      const table = page.getByRole("region", { name: "What differs" });
      assert.match(await table.innerText(), /layout/i);
      assert.match(await table.innerText(), /steps/i);
      const loss = page.getByRole("img", { name: /^Loss\. A .*last .* B .*last/ });
      await loss.waitFor();
      assert.ok(await isDrawn(page, ".chart canvas"));
    }),

  "a run shows its curves, and the predicted range behind those that have one": () =>
    withPage(at(`#/runs/${kRich}`), {}, async (page) => {
      await page.getByRole("heading", { name: "two-stages" }).waitFor();
      for (const title of [
        "Loss",
        "Tokens per second",
        "MFU",
        "Memory, peak",
        "Gradient norm",
        "Goodput",
        "Step time",
      ]) {
        await page.getByRole("img", { name: new RegExp(`^${title}\\. .* to ${kSteps}, last`) }).waitFor();
      }
      const rate = await page.getByRole("img", { name: /^Tokens per second/ }).getAttribute("aria-label");
      const { predicted } = await fixture.ask(`/runs/${kRich}`);
      assert.ok(predicted.tokens_per_second.low > 0);
      assert.match(rate, /predicted .* \(.* to .*\)/);
      assert.match(await page.getByRole("img", { name: /^Step time/ }).getAttribute("aria-label"), /predicted/);
      assert.ok(await isDrawn(page, ".chart canvas"));
      assert.match(await text(page, ".live-ended"), /ended/);
    }),

  "dragging in a chart asks for that part alone, and a double-click goes back": () =>
    withPage(at(`#/runs/${kRich}`), {}, async (page) => {
      const chart = page.getByRole("img", { name: /^Loss/ });
      await chart.waitFor();
      await until(() => isDrawn(page, ".chart canvas"));
      const over = await chart.locator(".u-over").boundingBox();
      const asked = page.waitForRequest((request) => /series\?metric=loss.*from=\d+&to=\d+/.test(request.url()));
      await page.mouse.move(over.x + over.width * 0.25, over.y + 40);
      await page.mouse.down();
      await page.mouse.move(over.x + over.width * 0.5, over.y + 60, { steps: 4 });
      await page.mouse.up();
      const [, from, to] = (await asked)
        .url()
        .match(/from=(\d+)&to=(\d+)/)
        .map(Number);
      assert.ok(from > 20 && from < 40 && to > 50 && to < 70, `from ${from} to ${to}`);
      await page.getByRole("img", { name: new RegExp(`^Loss\\. .*step ${from} to ${to}`) }).waitFor();
      assert.match(page.url(), /from=\d+&to=\d+/);
      await page.mouse.dblclick(over.x + over.width / 2, over.y + 40);
      await page.getByRole("img", { name: new RegExp(`^Loss\\. .*step 1 to ${kSteps}`) }).waitFor();
    }),

  "the waterfall goes from peak to achieved, predicted beside measured": () =>
    withPage(at(`#/runs/${kRich}/waterfall`), {}, async (page) => {
      const table = page.getByRole("region", { name: "From peak to achieved" });
      await table.waitFor();
      const rows = await table.getByRole("row").allInnerTexts();
      const figures = (row) =>
        [...row.matchAll(/([−+]?)([\d.]+)%/g)].map((one) => (one[1] === "−" ? -1 : 1) * Number(one[2]));
      const peak = rows.findIndex((row) => row.startsWith("Peak"));
      const achieved = rows.findIndex((row) => /of a step/.test(row));
      assert.ok(peak >= 0 && achieved > peak + 1, rows.join("\n"));
      const losses = rows.slice(peak + 1, achieved).map((row) => figures(row)[0]);
      const left = losses.reduce((sum, one) => sum + one, 100);
      assert.ok(Math.abs(left - figures(rows[achieved])[0]) < 0.5, `losses leave ${left}: ${rows.join("\n")}`);
      assert.ok(figures(rows[achieved]).length === 2, "predicted and measured");
      assert.match(rows.join("\n"), /ms/);
    }),

  "the heat map marks the slow rank, and a cell opens its step on the timeline": () =>
    withPage(at(`#/runs/${kRich}/ranks`), {}, async (page) => {
      const map = page.getByRole("img", { name: /ranks by steps/ });
      await map.waitFor();
      const table = page.getByRole("region", { name: /every rank/ });
      const rows = await table.getByRole("row").allInnerTexts();
      assert.deepEqual(
        rows.filter((row) => /straggler/.test(row)).map((row) => Number.parseInt(row, 10)),
        [kSlowRank],
      );
      assert.ok(await isDrawn(page, ".heat-plot canvas"));
      await page.getByRole("button", { name: "Waiting for peers" }).click();
      await page.getByRole("heading", { name: "Waiting for peers" }).waitFor();
      const box = await map.boundingBox();
      await map.click({ position: { x: box.width - 20, y: 40 } });
      await page.waitForURL(/timeline\?step=\d+/);
      assert.ok(Number(page.url().match(/step=(\d+)/)[1]) > kSteps - 10);
    }),

  "the timeline draws spans of every rank, zooms, and tells bytes and waiting": () =>
    withPage(at(`#/runs/${kRich}/timeline?step=${kSteps}`), {}, async (page) => {
      const canvas = page.getByRole("img", { name: /Spans of every rank/ });
      await canvas.waitFor();
      await until(() => isDrawn(page, ".tl-plot canvas"));
      const table = await page.getByRole("region", { name: "Seconds of each kind" }).innerText();
      for (const kind of ["Forward", "Backward", "Collective", "Wait", "Optimizer"])
        assert.match(table, new RegExp(kind));
      // The all-reduce of rank 0 waits for the slow rank of its stage's peers: found by sweeping over its lane.
      const box = await canvas.boundingBox();
      const tips = new Set();
      for (let x = 100; x < box.width; x += 12) {
        await page.mouse.move(box.x + x, box.y + 55);
        if (await page.locator(".tip").count()) tips.add(await page.locator(".tip").innerText());
      }
      const all = [...tips].join("\n");
      assert.match(all, /all_reduce/);
      assert.match(all, /64 MiB/);
      assert.match(all, /with rank 2/);
      const before = await canvas.screenshot();
      await page.getByRole("button", { name: "Zoom in" }).click();
      await until(async () => !(await canvas.screenshot()).equals(before));
      await page.keyboard.press("[");
      await page.waitForURL(new RegExp(`step=${kSteps - 1}`));
    }),

  "memory is shown by term, and what every rank held": () =>
    withPage(at(`#/runs/${kRich}/memory`), {}, async (page) => {
      const terms = await page.getByRole("region", { name: "Predicted terms" }).innerText();
      for (const term of ["Parameters", "Gradients", "Optimizer", "Activations", "Buffers", "Total"])
        assert.match(terms, new RegExp(term));
      const ranks = await page.getByRole("region", { name: "Measured by rank" }).innerText();
      for (const [rank, stage] of [0, 0, 1, 1].entries()) assert.match(ranks, new RegExp(`^${rank} stage ${stage}`, "m"));
      for (const rank of [0, 3])
        assert.ok(ranks.includes(`${((kPeakBytes + rank * 1e8) / 2 ** 30).toFixed(1)} GiB`), ranks);
    }),

  "incidents, alerts and checkpoints stand on one time line and as stories": () =>
    withPage(at(`#/runs/${kRich}/incidents`), {}, async (page) => {
      await page.getByRole("heading", { name: /Failure/ }).waitFor();
      for (const story of ["rank 3 was killed by signal 9", "rank 2 is 25% slower than the median rank"]) {
        await page.locator(".finding-evidence", { hasText: story }).waitFor();
      }
      const line = await page.getByRole("img", { name: /^From .*checkpoints/ }).getAttribute("aria-label");
      assert.match(line, /2 checkpoints/);
      assert.match(line, /1 alerts/);
      await page.getByText("Goodput", { exact: true }).first().waitFor();
    }),

  "the diagnosis names the slow rank with evidence, cost and fix, or says that nothing is wrong": () =>
    withPage(at(`#/runs/${kRich}/diagnosis`), {}, async (page) => {
      const { findings } = await fixture.ask(`/runs/${kRich}/diagnosis`);
      if (findings.length === 0) return page.getByText("Nothing is wrong").waitFor();
      for (const finding of findings) {
        await page.getByText(finding.evidence).waitFor();
        await page.getByText(finding.fix).waitFor();
      }
      await page.getByRole("button", { name: "Copy fix" }).first().waitFor();
    }),

  "job and environment are shown as they were recorded": () =>
    withPage(at(`#/runs/${fixture.recorded}/job`), {}, async (page) => {
      await page.getByRole("heading", { name: "Environment" }).waitFor();
      assert.match(await text(page, "pre"), /arch: gpt|gpt-bytes/);
      await page.getByText(`lockstep recipe ${fixture.recorded}`).waitFor();
    }),

  "every page of a real run of four ranks has something to show": () =>
    withPage(at(`#/runs/${fixture.recorded}`), {}, async (page) => {
      await page.getByRole("img", { name: /^Loss\. .*to 40, last/ }).waitFor();
      for (const [tab, sign] of [
        ["waterfall", ".waterfall"],
        ["ranks", ".heat-plot canvas"],
        ["timeline", ".tl-plot canvas"],
        ["memory", ".mem-row"],
        ["incidents", ".event-line"],
        ["diagnosis", ".finding, .empty"],
        ["job", "pre"],
      ]) {
        await page.goto(at(`#/runs/${fixture.recorded}/${tab}`));
        await page.locator(sign).first().waitFor();
      }
      const ranks = await fixture.ask(`/runs/${fixture.recorded}/heatmap?metric=step_seconds`);
      assert.deepEqual(ranks.ranks, [0, 1, 2, 3]);
    }),

  "studies are listed; a study shows its trials, the best so far and what knobs are worth": () =>
    withPage(at("#/studies"), {}, async (page) => {
      await page.getByRole("link", { name: "buckets" }).click();
      await page.getByRole("heading", { name: "buckets" }).waitFor();
      await page.getByRole("img", { name: /^Throughput of the trials\. trials: .* best so far:/ }).waitFor();
      assert.ok(await isDrawn(page, ".chart canvas"));
      await page.getByRole("heading", { name: "What each knob is worth" }).waitFor();
      await page.locator(".bars").getByText("bucket_mib").waitFor();
      await page.getByText("Trials, fastest first").click();
      assert.ok((await page.getByRole("region", { name: "Trials" }).getByRole("row").count()) >= 16);
    }),

  "the cluster page shows the machine that the live run is on": () =>
    withPage(at("#/cluster"), {}, async (page) => {
      const { runs } = await fixture.ask("/cluster");
      const { host } = runs.find((run) => run.id === fixture.live);
      const card = page.locator(".nodes .card", { has: page.getByRole("link", { name: "live-run" }) });
      assert.ok((await card.innerText()).includes(host));
      assert.match(await card.innerText(), /running/);
    }),

  "an address that names nothing says so": () =>
    withPage(at("#/runs/no-such-run"), { expected: [/404/] }, async (page) => {
      await page.getByText(/there is no run/).waitFor();
      await page.goto(at("#/nowhere"));
      await page.getByText("There is no such page").waitFor();
    }),
};
