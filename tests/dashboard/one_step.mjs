// One step of 1F1B on two stages of two replicas, played by hand: rank = 2 * stage + replica. Times in microseconds.
export const kSlowRank = 2;
const kMicros = 4;
const kOrders = ["F0 F1 B0 F2 B1 F3 B2 B3".split(" "), "F0 B0 F1 B1 F2 B2 F3 B3".split(" ")];
export const kNames = ["all_reduce", "dp", "send", "receive", "pp", "everyone:0-3"];

// Names are numbers into kNames: kind, lane, begin, length, name, group, bytes, sequence, peer, micro, stage.
const message = (at, length, sends, sequence, peer, micro, stage) => [
  "collective",
  "comm",
  at,
  length,
  sends ? 2 : 3,
  4,
  8 << 20,
  sequence,
  peer,
  micro,
  stage,
];

// Both stages of one replica, until each is through with its micro-batches.
function playReplica(replica, unit) {
  const ranks = [replica, replica + 2].map((rank) => ({
    rank,
    at: unit / 10,
    next: 0,
    spans: [["load", "main", 0, unit / 10]],
  }));
  const ready = new Map(); // "F0" of stage 1, "B0" of stage 0: when their input has arrived
  const transfer = unit / 12;
  for (let left = 4 * kMicros; left > 0; left--) {
    const runnable = ranks.map((one, stage) => {
      const what = kOrders[stage][one.next];
      if (!what) return Number.POSITIVE_INFINITY;
      const needs = (what[0] === "F") === (stage === 1);
      return needs ? Math.max(one.at, ready.get(what) ?? Number.POSITIVE_INFINITY) : one.at;
    });
    const stage = runnable[0] <= runnable[1] ? 0 : 1;
    const one = ranks[stage];
    const what = kOrders[stage][one.next++];
    const [forward, micro] = [what[0] === "F", Number(what[1])];
    const begin = runnable[stage];
    if (begin > one.at + 1) one.spans.push(["wait", "main", one.at, begin - one.at, 3, 4]);
    const length = unit * (forward ? 1 : 2) * (one.rank === kSlowRank ? 1.25 : 1);
    one.spans.push([forward ? "forward" : "backward", "main", begin, length, -1, -1, 0, -1, -1, micro, stage]);
    one.at = begin + length;
    if (forward === (stage === 0)) {
      const other = ranks[1 - stage];
      const sequence = 100 * replica + (forward ? 0 : 50) + micro;
      one.spans.push(message(one.at, transfer, true, sequence, other.rank, micro, stage));
      other.spans.push(message(one.at, transfer, false, sequence, one.rank, micro, 1 - stage));
      ready.set(what, one.at + transfer);
    }
  }
  return ranks;
}

// Spans of all ranks and what they add up to. A `unit` is one forward of one micro-batch.
export function playStep(unit, step) {
  const ranks = [0, 1].flatMap((replica) => playReplica(replica, unit)).sort((a, b) => a.rank - b.rank);
  const ends = [0, 1].map(
    (stage) => Math.max(...ranks.filter((one) => one.rank >> 1 === stage).map((one) => one.at)) + unit / 2,
  );
  const length = Math.max(...ends) + unit * 0.6;
  return ranks.map((one) => {
    const end = ends[one.rank >> 1];
    one.spans.push(["collective", "comm", one.at, end - one.at, 0, 1, 64 << 20, 2 * step + (one.rank >> 1)]);
    one.spans.push(["wait", "main", one.at, end - one.at, 0, 1]);
    one.spans.push(["optimizer", "main", end, unit / 2]);
    // The small exchange that ends every step: who is early waits for the others.
    const early = end + unit / 2;
    one.spans.push(["collective", "comm", early, length - unit / 20 - early, 0, 5, 8, step]);
    one.spans.push(["wait", "main", early, length - unit / 20 - early, 0, 5]);
    one.spans.push(["step", "main", 0, length]);
    const sum = (...kinds) =>
      one.spans.filter((span) => kinds.includes(span[0])).reduce((all, span) => all + span[3], 0) / 1e6;
    const comm = sum("wait");
    const phases = {
      compute: sum("forward", "backward"),
      comm,
      wait: comm - unit / 2e6,
      data: sum("load"),
      optimizer: sum("optimizer"),
    };
    const host = length / 1e6 - phases.compute - phases.comm - phases.data - phases.optimizer;
    const spans = one.spans.sort((a, b) => a[2] - b[2] || b[3] - a[3]);
    return {
      rank: one.rank,
      seconds: length / 1e6,
      spans,
      phases: { ...phases, host },
      forward: sum("forward"),
      backward: sum("backward"),
    };
  });
}
