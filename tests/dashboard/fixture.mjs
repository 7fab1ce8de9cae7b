// One home with runs of every kind and one server over it, made once for all tests:
//   recorded   a real run of four ranks that has ended
//   live       a real run of four ranks that goes on
//   rich       a run with known figures: two stages, a slow rank, a failure, an alert, spans
//   hostile    a run whose every text is an attack
//   study      a real study of the tuner
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { writeHostile, writeRich } from "./records.mjs";
import { endAll, finish, makeHome, runToEnd, serve, source, start, until } from "./support.mjs";

const kJob = join(source, "specs/jobs/gpt-bytes-demo.yaml");

// The live run takes its time in sleep: four ranks that compute without a pause take every core from the browser.
const kPace = "slow rank=0,1,2,3 phase=forward delay=200ms";

// A worker of the tuner: throughput is best where buckets are largest. One JSON line each way.
const kWorker = `
import json, sys
for line in sys.stdin:
    config = json.loads(line)["config"]
    value = 100 + 10 * config["bucket_mib"] ** 0.5 + (5 if config["algo"] == "Tree" else 0)
    print(json.dumps({"samples": [value, value * 1.01, value * 0.99]}), flush=True)
`;

export const fixture = {
  home: "",
  url: "",
  port: 0,
  recorded: "",
  live: "",
  study: "",

  async begin() {
    this.home = makeHome();
    writeRich(this.home);
    writeHostile(this.home);
    await runToEnd(this.home, ["train", kJob, "steps=40", "evaluation.every=20"]);
    await this.makeStudy();
    this.trainer = start(this.home, ["train", kJob, "steps=1000000", "name=live-run", "--chaos", kPace], { quiet: true });
    this.trainer.stdout.resume();
    await this.startServer(0);
    const find = async (name, status) => {
      const list = await this.ask(`/runs?status=${status}`);
      return list.runs.find((run) => run.name === name && (run.steps > 0 || status === "done"))?.id;
    };
    this.live = await until(() => find("live-run", "running"), 180, 500);
    this.recorded = await find("gpt-bytes-demo", "done");
    this.study = (await this.ask("/studies")).studies[0].id;
  },

  async makeStudy() {
    writeFileSync(join(this.home, "worker.py"), kWorker);
    writeFileSync(
      join(this.home, "space.yaml"),
      "knobs:\n  bucket_mib: {log_int: [1, 64], default: 1}\n  algo: {choices: [Ring, Tree], default: Ring}\n",
    );
    const worker = `python3 ${join(this.home, "worker.py")}`;
    await runToEnd(this.home, [
      "tune",
      "--space",
      join(this.home, "space.yaml"),
      "--worker",
      worker,
      "--trials",
      "16",
      "--name",
      "buckets",
    ]);
  },

  async startServer(port) {
    const server = await serve(this.home, port);
    Object.assign(this, { server: server.child, url: server.url, port: server.port });
  },

  async stopServer() {
    await finish(this.server, 10, "SIGINT");
  },

  async stopTraining() {
    await finish(this.trainer, 30, "SIGINT");
  },

  async ask(path) {
    const answer = await fetch(`${this.url}/api/v1${path}`);
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return answer.json();
  },

  at(hash) {
    return `${this.url}/${hash}`;
  },

  end() {
    return endAll(process.env.LOCKSTEP_KEEP_HOME ? "" : this.home);
  },
};
