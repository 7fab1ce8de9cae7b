// Runs written as JSON lines (docs/reference/run-store.md): one with everything a page can show, its figures known; one
// whose every text is hostile.
import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { kNames, playStep } from "./one_step.mjs";
import { source, trainer } from "./support.mjs";

export { kSlowRank } from "./one_step.mjs";

export const kRich = "20261101-000000-aaaaaa-two-stages";
export const kHostile = "20261101-000001-bbbbbb-hostile";
export const kSteps = 120;
const kBegun = 1793491200;

export const kHostileTexts = [
  `<img src=x onerror="window.hacked=1">`,
  `"><script>window.hacked=2</script>`,
  `javascript:window.hacked=3`,
  `\u001b]0;hacked\u0007\u001b[31mred\u202e`,
  `{{constructor.constructor('window.hacked=4')()}}`,
];

function writeLines(home, id, files) {
  const folder = join(home, "runs", id);
  mkdirSync(folder, { recursive: true });
  for (const [name, lines] of Object.entries(files)) {
    writeFileSync(join(folder, name), lines.map((line) => `${JSON.stringify({ run: id, ...line })}\n`).join(""));
  }
}

const begin = (name, world, job) => ({
  type: "run",
  name,
  started_at: kBegun,
  world,
  backend: "gloo",
  host: "node-1",
  pid: 1,
  pid_started: 1,
  job,
  versions: { lockstep: "0.1.0" },
});
const event = (time, level, kind, message, more = {}) => ({
  type: "event",
  time: kBegun + time,
  level,
  kind,
  rank: -1,
  step: -1,
  message,
  data: {},
  ...more,
});

// Somewhat slower than predicted, as real runs are; steps differ by some percent.
const wobble = (step) => 1 + 0.03 * Math.sin(step * 1.7) + (step % 37 === 0 ? 0.12 : 0);

function metricsOf(one, step, time, useful, prediction) {
  const { phases } = one;
  const values = {
    step_seconds: one.seconds,
    compute_seconds: phases.compute,
    forward_seconds: one.forward,
    backward_seconds: one.backward,
    comm_seconds: phases.comm,
    wait_seconds: phases.wait,
    data_seconds: phases.data,
    optimizer_seconds: phases.optimizer,
    checkpoint_seconds: 0,
    host_seconds: phases.host,
    memory_bytes: kPeakBytes + one.rank * 1e8,
    allocated_bytes: 20e9,
  };
  if (one.rank === 0) {
    const speed = prediction.step_seconds / one.seconds;
    Object.assign(values, {
      loss: 2 + 8 * Math.exp(-step / 30) + 0.05 * Math.sin(step * 2.3),
      tokens_per_second: prediction.tokens_per_second * speed,
      mfu: prediction.mfu * speed,
      gradient_norm: 1 + 3 / step + 0.1 * Math.sin(step),
      goodput: useful / (time - kBegun),
      learning_rate: 3e-4 * Math.min(1, step / 20),
    });
  }
  return { type: "metrics", rank: one.rank, step, time, values };
}

export const kPeakBytes = 30e9;

export function writeRich(home) {
  const flags = [
    "plan",
    "--model",
    "llama3.2-1b",
    "--cluster",
    "1x4xH100",
    "--layout",
    "pp=2,dp=2",
    "--micro",
    "2",
    "--seq",
    "4096",
    "--global-batch",
    "16",
    "--json",
  ];
  const plan = JSON.parse(
    execFileSync(trainer, flags, { cwd: source, env: { ...process.env, LOCKSTEP_HOME: home }, maxBuffer: 1 << 26 }),
  );
  const { prediction } = plan.best;
  const job =
    "model: llama3.2-1b\ncluster: 1x4xH100\nlayout: {pp: 2, dp: 2}\nbatch: {micro: 2, accumulation: 4}\nsteps: 120\nseed: 1\n";
  const unit = ((prediction.step_seconds * 1.08) / playStep(1e6, 0)[0].seconds) * 1e6;
  const ranks = [[], [], [], []];
  let time = kBegun + 10;
  let useful = 0;
  for (let step = 1; step <= kSteps; step++) {
    const played = playStep(unit * wobble(step), step);
    useful += played[0].seconds;
    for (const one of played) {
      ranks[one.rank].push(metricsOf(one, step, time + one.seconds, useful, prediction));
      if (step > kSteps - 20)
        ranks[one.rank].push({ type: "spans", rank: one.rank, step, time, names: kNames, spans: one.spans });
    }
    time += played[0].seconds + (step === 50 ? 4 : 0);
  }
  const took = time - kBegun;
  const saved = (step, share) =>
    event(took * share, "info", "checkpoint", `saved step ${step}`, {
      step,
      data: { path: `runs/x/step-${step}`, bytes: 1.5e10, seconds: 1.5, stall_seconds: 0.2 },
    });
  const alert = {
    rule: "straggler",
    state: "firing",
    value: 0.25,
    limit: 0.1,
    cost_percent: 6,
    fix: "lockstep diagnose last",
  };
  writeLines(home, kRich, {
    "run.jsonl": [
      begin("two-stages", 4, job),
      { type: "plan", plan },
      saved(40, 0.36),
      event(took * 0.44, "error", "rank_lost", "rank 3 was killed by signal 9", { rank: 3, step: 50 }),
      event(took * 0.44 + 4, "warning", "restart", "generation 2 with 4 ranks", {
        data: { generation: 2, world: 4, restarts: 1 },
      }),
      event(took * 0.7, "warning", "alert", "rank 2 is 25% slower than the median rank", {
        rank: 2,
        step: 90,
        data: alert,
      }),
      saved(100, 0.84),
      {
        type: "end",
        time: kBegun + took + 2,
        status: "done",
        exit_reason: "",
        summary: { steps: kSteps, final_loss: 2.1, tokens_per_second: prediction.tokens_per_second / 1.08 },
      },
    ],
    ...Object.fromEntries(ranks.map((lines, rank) => [`rank-0000${rank}.jsonl`, lines])),
  });
}

export function writeHostile(home) {
  const text = kHostileTexts.join(" ");
  const events = kHostileTexts.map((one, at) =>
    event(5 + at, "error", one, one, { data: { rule: one, state: "firing", fix: one, text: one } }),
  );
  writeLines(home, kHostile, {
    "run.jsonl": [
      {
        ...begin(text, 1, `model: "${text}"\nname: ${text}\n`),
        backend: kHostileTexts[0],
        host: kHostileTexts[1],
        versions: { [kHostileTexts[0]]: kHostileTexts[2] },
      },
      ...events.slice(0, 2),
      event(8, "error", "alert", text, { data: { rule: text, state: "firing", fix: text, cost_percent: 1 } }),
      event(9, "error", "failure", text, { rank: 0, step: 2 }),
      {
        type: "end",
        time: kBegun + 10,
        status: "failed",
        exit_reason: text,
        summary: { [kHostileTexts[1]]: kHostileTexts[0] },
      },
    ],
    "rank-00000.jsonl": [1, 2, 3].map((step) => ({
      type: "metrics",
      rank: 0,
      step,
      time: kBegun + step,
      values: { loss: step === 2 ? "nan" : 1 / step, step_seconds: 0.1, [kHostileTexts[0]]: 1 },
    })),
  });
  // Tags with control characters are refused by the store itself.
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  const tags = kHostileTexts.filter((one) => !/[\u0000-\u001f]/.test(one));
  writeFileSync(join(home, "runs", kHostile, "tags.json"), `${JSON.stringify({ tags })}\n`);
}
