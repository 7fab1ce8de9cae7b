// Made-up runs in the shapes of docs/reference/http-api.md: for work on the page without a trained model.
const now = () => Date.now() / 1000;
const noise = (seed) => {
  const x = Math.sin(seed * 12.9898) * 43758.5453;
  return x - Math.floor(x) - 0.5;
};

export const runs = [
  run("20261118-010203-aaaaaa-gpt-live", "gpt-live", "running", 400, { tags: ["baseline", "week 47"], alerts: 1 }),
  run("20261118-000000-bbbbbb-gpt-124m", "gpt-124m", "done", 5000, { tags: ["baseline"] }),
  run("20261117-220000-cccccc-llama-7b", "llama-7b-pretrain", "failed", 1_000_000, {
    exit_reason: "rank 3 was lost: the process was killed by signal 9",
    world: 64,
    backend: "nccl",
  }),
  run("20261117-200000-dddddd-x", `<img src=x onerror="window.hacked=1">`, "interrupted", 120, {
    tags: ["javascript:window.hacked=1", "\u001b[31mred"],
  }),
  run("20261117-190000-eeeeee-resnet", "resnet-cifar", "done", 900, { unit: "samples" }),
  run("20261117-180000-ffffff-lost", "lost-run", "lost", 40, {}),
];

function run(id, name, status, steps, more) {
  const started = now() - 3600 * (2 + (id.charCodeAt(16) % 7));
  const unit = more.unit ?? "tokens";
  return {
    id,
    name,
    status,
    steps,
    unit,
    started_at: started,
    ended_at: status === "running" ? null : started + 3000,
    world: more.world ?? 4,
    backend: more.backend ?? "gloo",
    host: "node-1",
    tags: more.tags ?? [],
    model: unit === "tokens" ? "gpt2-124m" : "resnet18",
    layout: "pp=2,dp=2",
    loss: value({ unit }, "loss", steps),
    tokens_per_second: unit === "tokens" ? 18400 : null,
    samples_per_second: unit === "samples" ? 910 : null,
    predicted_per_second: unit === "tokens" ? 19600 : 1300,
    mfu: 0.391,
    goodput: 0.962,
    alerts: more.alerts ?? 0,
    exit_reason: more.exit_reason ?? "",
  };
}

const metricNames = (unit) => [
  "loss",
  `${unit}_per_second`,
  "mfu",
  "memory_bytes",
  "gradient_norm",
  "goodput",
  "step_seconds",
  "compute_seconds",
  "wait_seconds",
  "comm_seconds",
  "data_seconds",
  "learning_rate",
];

export function value(_of, metric, step, rank = 0) {
  const slow = rank === 2 ? 1 : 0;
  switch (metric) {
    case "loss":
      return 2.2 + 8 * Math.exp(-step / 60) + 1.2 * Math.exp(-step / 900) + 0.06 * noise(step);
    case "tokens_per_second":
      return 18400 * (1 + 0.05 * noise(step)) * (step % 97 === 0 ? 0.7 : 1) * Math.min(1, 0.4 + step / 8);
    case "samples_per_second":
      return 910 * (1 + 0.05 * noise(step));
    case "mfu":
      return 0.391 * (1 + 0.05 * noise(step)) * Math.min(1, 0.4 + step / 8);
    case "memory_bytes":
      return 11.2e9 + Math.min(step, 30) * 8e6;
    case "gradient_norm":
      return 0.8 + 2 * Math.exp(-step / 80) + 0.3 * Math.abs(noise(step));
    case "goodput":
      return 0.97 - 0.5 / (step + 1);
    case "step_seconds":
      return 0.222 * (1 + 0.04 * noise(step));
    case "wait_seconds":
      return slow ? 0.003 : 0.034 * (1 + 0.3 * noise(step + rank * 7));
    case "compute_seconds":
      return (slow ? 0.19 : 0.158) * (1 + 0.03 * noise(step + rank * 13));
    case "comm_seconds":
      return slow ? 0.012 : 0.044;
    case "data_seconds":
      return 0.004 * (1 + noise(step));
    default:
      return 3e-4 * Math.min(1, step / 100);
  }
}

export function detail(id) {
  const of = runs.find((one) => one.id === id);
  if (!of) return null;
  const band = (expected, spread) => ({ low: expected * (1 - spread), expected, high: expected * (1 + spread) });
  return {
    run: {
      ...of,
      job_yaml: "model: gpt2-124m\ncluster: 1x4xcpu\nbatch: {micro: 4, accumulation: 2}\nsteps: 5000\nseed: 1\n",
      versions: { lockstep: "0.1.0", libtorch: "1.13.1", cuda: null },
      summary: { restarts: 1, lost_steps: 12 },
    },
    metrics: metricNames(of.unit),
    ranks: [0, 1, 2, 3],
    unit: of.unit,
    predicted: {
      step_seconds: band(0.208, 0.06),
      [`${of.unit}_per_second`]: band(of.predicted_per_second, 0.06),
      mfu: band(0.417, 0.06),
      memory_bytes: { low: null, expected: 11.6e9, high: null },
    },
    plan: { best: { layout: { pp: 2, dp: 2 }, prediction: { step_seconds: 0.208, mfu: 0.417 } } },
    span_steps: Array.from({ length: 40 }, (_, at) => of.steps - 39 + at),
  };
}

export function series(of, metric, rank, from, to, points) {
  const first = Math.max(1, from || 1);
  const last = Math.min(of.steps, to > 0 ? to : of.steps);
  const size = Math.max(1, Math.ceil((last - first + 1) / points));
  const out = { metric, rank, steps: [], times: [], mean: [], min: [], max: [], last_step: of.steps };
  for (let step = first; step <= last; step += size) {
    const all = Array.from({ length: Math.min(size, 8) }, (_, at) =>
      value(of, metric, step + Math.floor((at * size) / 8), rank),
    );
    out.steps.push(step);
    out.times.push(of.started_at + step * 0.2);
    out.mean.push(all.reduce((sum, one) => sum + one, 0) / all.length);
    out.min.push(Math.min(...all));
    out.max.push(Math.max(...all));
  }
  return out;
}

export function heatmap(of, metric, columns) {
  const count = Math.min(columns, of.steps);
  const steps = Array.from({ length: count }, (_, at) => 1 + Math.floor((at * of.steps) / count));
  const ranks = Array.from({ length: Math.min(of.world, 64) }, (_, at) => at);
  return { metric, ranks, steps, values: ranks.map((rank) => steps.map((step) => value(of, metric, step, rank))) };
}

// Two stages of two ranks each, four micro-batches, 1F1B.
export function timeline(step) {
  const names = ["all_reduce", "dp", "send", "receive", "pp"];
  const order = {
    0: ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"],
    1: ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"],
  };
  const done = {};
  const ranks = [0, 1, 2, 3].map((rank) => {
    const stage = rank >> 1;
    const spans = [["step", "main", 0, 222000]];
    let at = 2000;
    spans.push(["load", "main", 0, at]);
    order[stage].forEach((what) => {
      const micro = Number(what[1]);
      const forward = what[0] === "F";
      const needs = done[`${forward ? 0 : 1}${what}${rank & 1}`];
      const ready =
        forward && stage === 1 ? (done[`F${micro}${rank & 1}`] ?? at) : !forward && stage === 0 ? at + 9000 : at;
      if (ready > at) {
        spans.push(["wait", "main", at, ready - at]);
        at = ready;
      }
      const length = (forward ? 12000 : 24000) * (rank === 2 ? 1.2 : 1);
      spans.push([forward ? "forward" : "backward", "main", at, length, -1, -1, 0, -1, -1, micro, stage]);
      at += length;
      if (forward && stage === 0) {
        done[`F${micro}${rank & 1}`] = at + 1500;
        spans.push(["collective", "comm", at, 1500, 2, 4, 4194304, micro + 10 * (rank & 1), rank + 2, micro, stage]);
      }
      if (forward && stage === 1)
        spans.push([
          "collective",
          "comm",
          done[`F${micro}${rank & 1}`] - 1500,
          1500,
          3,
          4,
          4194304,
          micro + 10 * (rank & 1),
          rank - 2,
          micro,
          stage,
        ]);
      void needs;
    });
    spans.push(["collective", "comm", at, 205000 - at, 0, 1, 52428800, 1 + stage * 100]);
    spans.push(["wait", "main", at, 205000 - at, 0, 1]);
    spans.push(["optimizer", "main", 205000, 14000]);
    return { rank, time: 1.79e9 + step, names, spans: spans.sort((a, b) => a[2] - b[2]) };
  });
  return { step, ranks };
}
