// Answers of the pages that are not curves.
const amount = (percent, usd) => ({
  percent,
  seconds: (percent / 100) * 0.222,
  percent_of_time: percent,
  usd_per_day: usd,
});

export const waterfall = {
  measure: "mfu",
  note: "",
  steps: 361,
  has_phases: true,
  communication_split_by: "spans",
  usd_per_day: 2400,
  step_seconds: { predicted: 0.208, measured: 0.222 },
  ideal_seconds: { predicted: 0.0868, measured: 0.0868 },
  achieved_percent: { predicted: 41.7, measured: 39.1 },
  overall_percent: { predicted: 40.9, measured: 37.6 },
  losses: [
    loss("kernels", "kernels below peak", 31, 31.4),
    loss("recompute", "recomputation", 9, 8.8),
    loss("bubble", "pipeline bubble", 8.3, 8.1),
    loss("tp_comm", "tensor communication", 0, 0),
    loss("dp_comm", "data-parallel communication", 4.9, 5.2),
    loss("stragglers", "waiting for stragglers", 0, 4.6),
    loss("loader", "loader", 0.2, 0.9),
    loss("optimizer", "optimizer", 3.4, 3.3),
    loss("checkpoint", "checkpoint stalls", 0.4, 0.5),
    loss("host", "host and other", 1.1, -1.9),
    loss("restarts", "restarts, lost work", 0.5, 1.1, true),
    loss("outside", "start, evaluation, end", 0.3, 0.4, true),
  ],
};
function loss(key, name, predicted, measured, outside = false) {
  return {
    key,
    name,
    outside_of_steps: outside,
    predicted: amount(predicted, predicted * 24),
    measured: amount(measured, measured * 24),
  };
}

export const memory = {
  predicted: {
    parameters_bytes: 2.1e9,
    gradients_bytes: 1.1e9,
    optimizer_bytes: 4.2e9,
    activations_bytes: 3.1e9,
    buffers_bytes: 0.6e9,
    overhead_bytes: 0.5e9,
    total_bytes: 11.6e9,
    snapshots_bytes: 0,
  },
  capacity_bytes: 16e9,
  peak_bytes: 11.44e9,
  ranks: [0, 1, 2, 3].map((rank) => ({
    rank,
    stage: rank >> 1,
    peak_bytes: 11.44e9 - rank * 2.2e8,
    allocated_bytes: 7.6e9,
    growth_bytes: rank === 3 ? 4.1e7 : 0,
  })),
};

export const incidents = (started) => ({
  incidents: [
    {
      kind: "failure",
      level: "error",
      began_at: started + 900,
      ended_at: started + 941,
      down_seconds: 41,
      lost_steps: 12,
      lost_seconds: 2.6,
      step: 120,
      ranks: [3],
      what: "rank 3 was killed by signal 9; the run went on from step 108",
      details: ["rank 3 is gone", "restart 1 of 3", "resumed from step 108"],
      rule: "",
      fix: "",
      cost_percent: 0,
    },
    {
      kind: "alert",
      level: "warning",
      began_at: started + 1800,
      ended_at: started + 2200,
      down_seconds: 0,
      lost_steps: 0,
      lost_seconds: 0,
      step: 260,
      ranks: [2],
      what: "rank 2 is 20% slower than the median rank",
      details: [],
      rule: "straggler",
      fix: "lockstep diagnose last: it says what slows the rank",
      cost_percent: 6.1,
    },
  ],
  checkpoints: [300, 1200, 2100, 2900].map((at, index) => ({
    time: started + at,
    step: 60 * (index + 1),
    seconds: 3.1,
    stall_seconds: 0.21,
    bytes: 4.2e9,
    path: `runs/x/checkpoint-${index}`,
  })),
});

export const goodput = {
  goodput: 0.942,
  elapsed_seconds: 3000,
  useful_seconds: 2826,
  checkpoint_seconds: 8,
  lost_seconds: 26,
  recovery_seconds: 41,
  start_seconds: 60,
  other_seconds: 39,
  line: [
    { period: "start", begin: 0, end: 60 },
    { period: "training", begin: 60, end: 900 },
    { period: "recovery", begin: 900, end: 941 },
    { period: "training", begin: 941, end: 2980 },
    { period: "end", begin: 2980, end: 3000 },
  ],
};

export const events = (started) => ({
  events: [
    {
      time: started + 900,
      level: "error",
      kind: "rank_lost",
      rank: 3,
      step: 120,
      message: "rank 3 was killed by signal 9",
      data: {},
    },
    {
      time: started + 941,
      level: "info",
      kind: "restart",
      rank: -1,
      step: -1,
      message: "generation 2 with 4 ranks",
      data: {},
    },
    {
      time: started + 1800,
      level: "warning",
      kind: "alert",
      rank: 2,
      step: 260,
      message: "<script>window.hacked=1</script> straggler",
      data: { state: "firing" },
    },
  ],
  more: false,
});

export const diagnosis = {
  read: [{ file: "run", kind: "run", ranks: 4 }],
  findings: [
    {
      cause: "slow_rank",
      confidence: 0.93,
      cost_percent: 6.1,
      cost_usd_per_hour: 6.1,
      ranks: [2],
      evidence: "rank 2 computes for 190 ms a step, the others for 158 ms; they wait 34 ms for it in every all-reduce",
      fix: "lockstep launch --exclude node-1:2: the other ranks then run at their own pace",
      gain_percent: 6.5,
    },
    {
      cause: "bubble",
      confidence: 0.8,
      cost_percent: 3.2,
      cost_usd_per_hour: 3.2,
      ranks: [],
      evidence: "8.1% of the step is pipeline bubble with 4 micro-batches on 2 stages",
      fix: "batch.accumulation=8: twice as many micro-batches halve the bubble",
      gain_percent: 3.4,
    },
  ],
};

const created = Date.now() / 1000 - 90000;
const importance = [
  ["bucket_mib", 11.2],
  ["num_workers", 6.4],
  ["prefetch_factor", 1.1],
  ["NCCL_ALGO", 0.3],
].map(([knob, worth]) => ({
  knob,
  set_back_percent: { value: worth, low: worth * 0.8, high: worth * 1.2, launches: 3 },
  set_back_fails: false,
  variance_main_percent: { value: worth, low: 0, high: 20 },
  variance_total_percent: { value: worth * 3, low: 0, high: 60 },
}));
const study = {
  id: "20261117-120000-abcdef-cpu",
  name: "tune-cpu",
  status: "done",
  created_at: created,
  ended_at: created + 3000,
  host: "node-1",
  trials: 45,
  failed: 3,
  gpu_seconds: 7200,
  conclusion: {
    best: {
      config: { bucket_mib: 32, num_workers: 4, prefetch_factor: 2, NCCL_ALGO: "Ring" },
      estimate: 21400,
      low: 21000,
      high: 21800,
      provisional: false,
    },
    baseline: {
      config: { bucket_mib: 1, num_workers: 0, prefetch_factor: 2, NCCL_ALGO: "Ring" },
      estimate: 17800,
      low: 17500,
      high: 18100,
    },
    gain_percent: { value: 20.2, low: 17.9, high: 22.4 },
    importance,
  },
};
export const studies = { studies: [study] };
export const studyDetail = {
  study: {
    ...study,
    space: "knobs:\n  bucket_mib: {log_int: [1, 256]}\n  num_workers: {int: [0, 16], default: 2}\n",
    options: { unit: "tokens" },
  },
  trials: Array.from({ length: 45 }, (_, at) => ({
    trial: at,
    attempt: 0,
    state: "ended",
    started_at: created + at * 60,
    seconds: 55,
    gpu_seconds: 220,
    purpose: at < 3 ? "baseline" : "explore",
    outcome: at % 15 === 7 ? "oom" : "measured",
    throughput: at % 15 === 7 ? null : 17800 + 3500 * (1 - Math.exp(-at / 12)) * Math.abs(Math.sin(at * 1.7)),
    config: { bucket_mib: 2 ** (at % 8), num_workers: at % 9, prefetch_factor: 2, NCCL_ALGO: at % 2 ? "Ring" : "Tree" },
    message: at % 15 === 7 ? "out of memory" : null,
  })),
};

export const cluster = {
  time: created,
  dcgm: null,
  runs: [
    {
      id: "20261118-010203-aaaaaa-gpt-live",
      name: "gpt-live",
      status: "running",
      host: "node-1",
      world: 4,
      ranks: [0, 1, 2, 3].map((rank) => ({
        rank,
        time: Date.now() / 1000 - 2,
        values: {
          ...(rank === 0 ? { node_cpu_percent: 41, node_available_bytes: 3.1e11, node_disk_free_bytes: 8.2e11 } : {}),
          gpu_percent: 96 - rank * 9,
          gpu_memory_bytes: 6.1e10,
          gpu_temperature_celsius: 61 + rank,
          gpu_clock_ratio: rank === 2 ? 0.62 : 0.98,
          gpu_throttled: rank === 2 ? 1 : 0,
        },
      })),
      health: [
        {
          time: Date.now() / 1000 - 600,
          level: "warning",
          kind: "node_health",
          rank: 2,
          step: -1,
          message: "GPU 2 is throttled: power cap",
          data: {},
        },
      ],
    },
  ],
};
