// node tests/mock/server.mjs [PORT]: serves dashboard/dist and made-up answers of the HTTP API on loopback.
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { dirname, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { detail, heatmap, runs, series, timeline, value } from "./data.mjs";
import * as pages from "./pages.mjs";

const kTypes = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };
const kPolicy = "default-src 'self'; img-src 'self' data:; style-src 'self'; frame-ancestors 'none'; base-uri 'none'";

function apiAnswer(path, query, run) {
  const number = (key, fallback) => Number(query.get(key) ?? fallback);
  const what = path[4];
  if (path[2] === "studies") return path[3] ? pages.studyDetail : pages.studies;
  if (path[2] === "cluster") return pages.cluster;
  if (path[2] !== "runs") return null;
  if (!path[3]) return listed(query);
  if (!run) return null;
  if (!what) return detail(run.id);
  if (what === "series")
    return series(
      run,
      query.get("metric"),
      number("rank", 0),
      number("from", 0),
      number("to", 0),
      number("points", 1500),
    );
  if (what === "heatmap") return heatmap(run, query.get("metric"), number("columns", 200));
  if (what === "timeline") return timeline(number("step", run.steps));
  if (what === "incidents") return pages.incidents(run.started_at);
  if (what === "events") return pages.events(run.started_at);
  return (
    { waterfall: pages.waterfall, memory: pages.memory, goodput: pages.goodput, diagnosis: pages.diagnosis }[what] ??
    null
  );
}

function listed(query) {
  const word = (query.get("q") ?? "").toLowerCase();
  const found = runs.filter(
    (run) =>
      (!query.get("status") || run.status === query.get("status")) &&
      (!query.get("tag") || run.tags.includes(query.get("tag"))) &&
      `${run.name} ${run.id} ${run.model}`.toLowerCase().includes(word),
  );
  return { runs: found, more: false };
}

function stream(response, run) {
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
  response.write(": hello\n\n");
  if (!run) return;
  const timer = setInterval(() => {
    run.steps++;
    const values = {};
    for (const metric of detail(run.id).metrics) values[metric] = value(run, metric, run.steps);
    response.write(
      `event: tick\nid: ${run.steps}\ndata: ${JSON.stringify({ step: run.steps, time: Date.now() / 1000, values })}\n\n`,
    );
  }, 500);
  response.on("close", () => clearInterval(timer));
}

export function startMock(folder, port = 0) {
  const server = createServer(async (request, response) => {
    const url = new URL(request.url, "http://localhost");
    const path = url.pathname
      .split("/")
      .map(decodeURIComponent)
      .filter(Boolean)
      .map((part) => part);
    const json = (status, body) => {
      response.writeHead(status, { "content-type": "application/json" });
      response.end(JSON.stringify(body));
    };
    if (path[0] === "api") {
      const run = runs.find((one) => one.id === path[3]);
      if (path[2] === "stream" || path[4] === "stream") return stream(response, path[3] ? run : null);
      if (request.method === "POST" && path[4] === "tags" && run) {
        let body = "";
        for await (const part of request) body += part;
        run.tags = JSON.parse(body).tags;
        return json(200, { tags: run.tags });
      }
      const answer = apiAnswer(path, url.searchParams, run);
      return answer ? json(200, answer) : json(404, { error: "there is no such page" });
    }
    try {
      const file = join(folder, normalize(url.pathname === "/" ? "/index.html" : url.pathname));
      const bytes = await readFile(file);
      response.writeHead(200, {
        "content-type": kTypes[extname(file)] ?? "text/plain",
        "content-security-policy": kPolicy,
      });
      response.end(bytes);
    } catch {
      json(404, { error: "there is no such page" });
    }
  });
  return new Promise((done) => server.listen(port, "127.0.0.1", () => done({ server, port: server.address().port })));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const here = dirname(fileURLToPath(import.meta.url));
  const { port } = await startMock(process.argv[3] ?? join(here, "../../dist"), Number(process.argv[2] ?? 8643));
  console.log(`http://127.0.0.1:${port}`);
}
