// Where ranks differ: a heat map of ranks over steps, and a table that says the same in words.
import { useMemo } from "preact/hooks";
import { type Heatmap, runPath, useAsk } from "../lib/api";
import { kDash, metricTitle, seconds, signedPercent } from "../lib/format";
import { go, hrefOf } from "../lib/route";
import { Empty, Scroll, Waiting } from "../parts/bits";
import { HeatmapView } from "../parts/heatmap";
import type { TabProps } from "./run";

const kColumns = 200;
// A rank is called a straggler when its own work takes so much longer than the median rank's.
const kStraggler = 0.1;
const kMetrics = [
  "step_seconds",
  "own",
  "wait_seconds",
  "compute_seconds",
  "comm_seconds",
  "data_seconds",
  "host_seconds",
];

export function median(values: (number | null)[]): number | null {
  const known = values.filter((value): value is number => typeof value === "number").sort((a, b) => a - b);
  if (known.length === 0) return null;
  const middle = known.length >> 1;
  return known.length % 2 ? known[middle] : (known[middle - 1] + known[middle]) / 2;
}

// What a rank did itself: its step without the time it waited for others. The barrier makes all steps equally long, so
// this is what tells a slow rank from those that wait for it.
export function ownWork(step: Heatmap, wait: Heatmap | null): Heatmap {
  if (!wait) return step;
  const values = step.ranks.map((rank, row) => {
    const other = wait.values[wait.ranks.indexOf(rank)];
    return step.values[row].map((value, at) => (value === null ? null : value - (other?.[at] ?? 0)));
  });
  return { ...step, metric: "own", values };
}

export function Ranks({ detail, query, refresh }: TabProps) {
  const { run, metrics } = detail;
  const usable = kMetrics.filter((name) =>
    name === "own" ? metrics.includes("wait_seconds") : metrics.includes(name),
  );
  const metric = query.get("metric") ?? (usable.includes("own") ? "own" : (usable[0] ?? "step_seconds"));
  const path = (name: string) =>
    metrics.includes(name) ? runPath(run.id, `/heatmap?metric=${name}&columns=${kColumns}`) : null;
  const step = useAsk<Heatmap>(path("step_seconds"), "step", refresh);
  const wait = useAsk<Heatmap>(path("wait_seconds"), "wait", refresh);
  const other = useAsk<Heatmap>(
    ["own", "step_seconds", "wait_seconds"].includes(metric) ? null : path(metric),
    metric,
    refresh,
  );
  const own = useMemo(() => (step.data ? ownWork(step.data, wait.data) : null), [step.data, wait.data]);
  const shown =
    metric === "own" ? own : metric === "step_seconds" ? step.data : metric === "wait_seconds" ? wait.data : other.data;
  const slow = useMemo(() => stragglers(own), [own]);

  if (usable.length === 0) return <Empty title="No times of ranks are recorded yet" />;
  if (!step.data) return <Waiting {...step} what="Ranks" />;
  return (
    <>
      <div class="toolbar">
        <fieldset class="chips">
          <legend class="hidden">What is shown</legend>
          {usable.map((name) => (
            <button
              type="button"
              class="chip"
              key={name}
              aria-pressed={name === metric}
              onClick={() => go(hrefOf(["runs", run.id, "ranks"], { metric: name }), true)}
            >
              {name === "own" ? "Own work" : metricTitle(name)}
            </button>
          ))}
        </fieldset>
      </div>
      <p class="note">
        {metric === "own"
          ? "Own work is the step without the time spent waiting for others: the rank the others wait for stands out here."
          : metric === "wait_seconds"
            ? "The rank that waits least is the one the others wait for."
            : "Ranks from top to bottom, steps from left to right."}{" "}
        Choose a cell to see that step on the timeline.
      </p>
      {shown ? (
        <HeatmapView
          data={shown}
          marked={slow}
          title={metric === "own" ? "Own work" : metricTitle(metric)}
          open={(at) => go(hrefOf(["runs", run.id, "timeline"], { step: nearest(detail.span_steps, at) }))}
        />
      ) : (
        <Waiting {...other} what={metricTitle(metric)} />
      )}
      <RankTable step={step.data} wait={wait.data} own={own} slow={slow} />
    </>
  );
}

// The recorded step nearest to the one that was chosen: spans are kept of some steps only.
export function nearest(steps: number[], wanted: number): number {
  return steps.reduce(
    (best, step) => (Math.abs(step - wanted) < Math.abs(best - wanted) ? step : best),
    steps[0] ?? wanted,
  );
}

function stragglers(own: Heatmap | null): Map<number, number> {
  const found = new Map<number, number>();
  if (!own || own.ranks.length < 2) return found;
  const medians = own.values.map(median);
  const middle = median(medians);
  own.ranks.forEach((rank, row) => {
    const mine = medians[row];
    if (mine !== null && middle && mine / middle - 1 > kStraggler) found.set(rank, mine / middle - 1);
  });
  return found;
}

function RankTable(props: { step: Heatmap; wait: Heatmap | null; own: Heatmap | null; slow: Map<number, number> }) {
  const { step, wait, own, slow } = props;
  const middle = median((own ?? step).values.map(median));
  const of = (map: Heatmap | null, rank: number) => (map ? median(map.values[map.ranks.indexOf(rank)] ?? []) : null);
  return (
    <Scroll class="card gap" label="Median times of every rank">
      <table class="rows">
        <caption class="hidden">Median times of every rank</caption>
        <thead>
          <tr>
            <th scope="col">Rank</th>
            <th scope="col" class="figure">
              Step, median
            </th>
            <th scope="col" class="figure">
              Own work
            </th>
            <th scope="col" class="figure">
              Waiting
            </th>
            <th scope="col" class="figure">
              Against the median rank
            </th>
            <th scope="col">Finding</th>
          </tr>
        </thead>
        <tbody>
          {step.ranks.map((rank) => {
            const mine = of(own, rank);
            return (
              <tr key={rank}>
                <th scope="row">{rank}</th>
                <td class="figure">{seconds(of(step, rank))}</td>
                <td class="figure">{seconds(mine)}</td>
                <td class="figure">{seconds(of(wait, rank))}</td>
                <td class="figure">{mine !== null && middle ? signedPercent(mine / middle - 1) : kDash}</td>
                <td>{slow.has(rank) && <strong class="bad">▲ straggler</strong>}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </Scroll>
  );
}
