// node run.mjs [--only PATTERN]: makes the runs, starts the server, then runs the tests one after the other. Exits with 77
// where no browser is.
import { after, before, describe, it } from "node:test";
import { fixture } from "./fixture.mjs";
import { hostile } from "./hostile.mjs";
import { live } from "./live.mjs";
import { pages } from "./pages.mjs";
import { reach } from "./reach.mjs";
import { requireTools } from "./support.mjs";

requireTools();
const only = process.argv[2] === "--only" ? new RegExp(process.argv[3]) : /./;
const kEach = 600_000; // a busy machine must not make them fail

describe("the page of lockstep serve", () => {
  before(() => fixture.begin(), { timeout: 600_000 });
  after(() => fixture.end(), { timeout: 60_000 });
  // `live` stops what the others look at: it comes last.
  for (const group of [pages, reach, hostile, live]) {
    for (const [name, test] of Object.entries(group)) {
      if (only.test(name)) it(name, { timeout: kEach }, test);
    }
  }
});
