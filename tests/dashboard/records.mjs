// Runs written as JSON lines (docs/reference/run-store.md): one with everything a page can show, its figures known; one
// whose every text is hostile.
import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { source, trainer } from "./support.mjs";

export const kRich = "20261101-000000-aaaaaa-two-stages";
export const kHostile = "20261101-000001-bbbbbb-hostile";
export const kSlowRank = 2;
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
  type: "run", name, started_at: kBegun, world, backend: "gloo", host: "node-1", pid: 1, pid_started: 1, job, versions: { lockstep: "0.1.0" },
});
const event = (time, level, kind, message, more = {}) => ({
  type: "event", time: kBegun + time, level, kind, rank: -1, step: -1, message, data: {}, ...more,
});

// Two stages of two ranks; rank 2 computes a quarter longer than the others.
function spansOf(rank, step) {
  const stage = rank >> 1;
  const slow = rank === kSlowRank ? 1.25 : 1;
  const names = ["all_reduce", "dp", "send", "receive", "pp"];
  const spans = [["step", "main", 0, 200_000], ["load", "main", 0, 1000]];
  let at = 1000 + stage * 21_000;
  for (let micro = 0; micro < 2; micro++) {
    spans.push(["forward", "main", at, 20_000 * slow, -1, -1, 0, -1, -1, micro, stage]);
    at += 20_000 * slow;
    const message = 2 * micro + (rank & 1);
    if (stage === 0) spans.push(["collective", "comm", at, 1000, 2, 4, 1_048_576, message, rank + 2, micro, stage]);
    else spans.push(["collective", "comm", 1000 + 20_000 * (micro + 1), 1000, 3, 4, 1_048_576, message, rank - 2, micro, stage]);
    spans.push(["backward", "main", at, 40_000 * slow, -1, -1, 0, -1, -1, micro, stage]);
    at += 40_000 * slow;
  }
  spans.push(["collective", "comm", at, 190_000 - at, 0, 1, 4_194_304, step * 2 + stage]);
  spans.push(["wait", "main", at, 190_000 - at, 0, 1]);
  spans.push(["optimizer", "main", 190_000, 9000]);
  return { type: "spans", rank, step, time: kBegun + 10 + step * 0.2, names, spans: spans.sort((a, b) => a[2] - b[2]) };
}

function metricsOf(rank, step) {
  const compute = rank === kSlowRank ? 0.15 : 0.12;
  const wait = 0.188 - compute - 0.01;
  const values = {
    step_seconds: 0.2, compute_seconds: compute, forward_seconds: compute / 3, backward_seconds: (compute * 2) / 3, comm_seconds: wait + 0.01,
    wait_seconds: wait, data_seconds: 0.001, optimizer_seconds: 0.009, checkpoint_seconds: 0, host_seconds: 0.002,
    memory_bytes: 6e9 + rank * 1e8, allocated_bytes: 4e9,
  };
  if (rank === 0) {
    const loss = 2 + 8 * Math.exp(-step / 30);
    Object.assign(values, { loss, tokens_per_second: 40_960 + (step % 7) * 100, mfu: 0.35, gradient_norm: 1 + 1 / step, goodput: 0.9, learning_rate: 3e-4 });
  }
  return { type: "metrics", rank, step, time: kBegun + 10 + step * 0.2, values };
}

export function writeRich(home) {
  const flags = ["plan", "--model", "gpt2-124m", "--cluster", "1x4xH100", "--layout", "pp=2,dp=2", "--micro", "2", "--json"];
  const plan = JSON.parse(execFileSync(trainer, flags, { cwd: source, env: { ...process.env, LOCKSTEP_HOME: home }, maxBuffer: 1 << 26 }));
  const job = "model: gpt2-124m\ncluster: 1x4xH100\nlayout: {pp: 2, dp: 2}\nbatch: {micro: 2}\nsteps: 120\nseed: 1\n";
  const files = {
    "run.jsonl": [
      begin("two-stages", 4, job),
      { type: "plan", plan },
      event(12, "info", "checkpoint", "saved step 10", { step: 10, data: { path: "runs/x/step-10", bytes: 1e9, seconds: 1.5, stall_seconds: 0.2 } }),
      event(20, "error", "rank_lost", "rank 3 was killed by signal 9", { rank: 3, step: 50 }),
      event(24, "warning", "restart", "generation 2 with 4 ranks", { data: { generation: 2, world: 4, restarts: 1 } }),
      event(28, "warning", "alert", "rank 2 is 25% slower than the median rank", {
        rank: 2, step: 90, data: { rule: "straggler", state: "firing", value: 0.25, limit: 0.1, cost_percent: 6, fix: "lockstep diagnose last" },
      }),
      event(30, "info", "checkpoint", "saved step 100", { step: 100, data: { path: "runs/x/step-100", bytes: 1e9, seconds: 1.5, stall_seconds: 0.2 } }),
      { type: "end", time: kBegun + 40, status: "done", exit_reason: "", summary: { steps: kSteps, final_loss: 2.1, tokens_per_second: 41_000 } },
    ],
  };
  for (let rank = 0; rank < 4; rank++) {
    const lines = [];
    for (let step = 1; step <= kSteps; step++) {
      lines.push(metricsOf(rank, step));
      if (step > kSteps - 20) lines.push(spansOf(rank, step));
    }
    files[`rank-0000${rank}.jsonl`] = lines;
  }
  writeLines(home, kRich, files);
}

export function writeHostile(home) {
  const text = kHostileTexts.join(" ");
  const events = kHostileTexts.map((one, at) => event(5 + at, "error", one, one, { data: { rule: one, state: "firing", fix: one, text: one } }));
  writeLines(home, kHostile, {
    "run.jsonl": [
      { ...begin(text, 1, `model: "${text}"\nname: ${text}\n`), backend: kHostileTexts[0], host: kHostileTexts[1], versions: { [kHostileTexts[0]]: kHostileTexts[2] } },
      event(1, "info", "tags", text, { data: { tags: kHostileTexts } }),
      ...events.slice(0, 2),
      event(8, "error", "alert", text, { data: { rule: text, state: "firing", fix: text, cost_percent: 1 } }),
      event(9, "error", "failure", text, { rank: 0, step: 2 }),
      { type: "end", time: kBegun + 10, status: "failed", exit_reason: text, summary: { [kHostileTexts[1]]: kHostileTexts[0] } },
    ],
    "rank-00000.jsonl": [1, 2, 3].map((step) => ({
      type: "metrics", rank: 0, step, time: kBegun + step, values: { loss: step === 2 ? "nan" : 1 / step, step_seconds: 0.1, [kHostileTexts[0]]: 1 },
    })),
  });
}
