// The curves of a run, the predicted range behind each that has one.
import { useState } from "preact/hooks";
import type { Band } from "../lib/api";
import { go, hrefOf } from "../lib/route";
import { Empty } from "../parts/bits";
import { MetricChart, type Zoom } from "../parts/metric_chart";
import type { TabProps } from "./run";

// What is shown first, in this order, where it is recorded; the rest is one click away.
const kFirst = [
  "loss",
  "tokens_per_second",
  "samples_per_second",
  "mfu",
  "efficiency",
  "memory_bytes",
  "gradient_norm",
  "goodput",
  "step_seconds",
  "evaluation_loss",
  "learning_rate",
];

export function zoomOf(query: URLSearchParams): Zoom | null {
  const from = Number(query.get("from"));
  const to = Number(query.get("to"));
  return query.has("from") && Number.isFinite(from) && to > from ? { from, to } : null;
}

export function bandOf(predicted: Record<string, Band | null>, metric: string): Band | null {
  return predicted[metric] ?? null;
}

export function Overview({ detail, query, ticks, refresh }: TabProps) {
  const { run, metrics, ranks } = detail;
  const zoom = zoomOf(query);
  const [all, setAll] = useState(false);
  const rank = query.has("rank") ? Number(query.get("rank")) : undefined;
  const set = (change: Record<string, string | number | undefined>) =>
    go(hrefOf(["runs", run.id, "overview"], { rank, from: zoom?.from, to: zoom?.to, ...change }), true);
  const first = kFirst.filter((name) => metrics.includes(name));
  const rest = metrics.filter((name) => !kFirst.includes(name));
  if (metrics.length === 0) return <Empty title="Nothing is measured yet: the first step is on its way" />;
  return (
    <>
      <div class="toolbar">
        <span class="muted">Drag to zoom, double-click to go back.</span>
        {ranks.length > 1 && (
          <label>
            Rank
            <select value={rank ?? ""} onChange={(event) => set({ rank: event.currentTarget.value })}>
              <option value="">of the run</option>
              {ranks.map((one) => (
                <option key={one} value={one}>
                  {one}
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      <div class="charts">
        {[...first, ...(all ? rest : [])].map((metric) => (
          <MetricChart
            key={metric}
            runs={[{ id: run.id, label: metric }]}
            metric={metric}
            rank={rank}
            band={bandOf(detail.predicted, metric)}
            zoom={zoom}
            setZoom={(next) => set({ from: next?.from, to: next?.to })}
            ticks={rank === undefined ? ticks : undefined}
            refresh={refresh}
          />
        ))}
      </div>
      {rest.length > 0 && (
        <button type="button" class="more" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "Show fewer" : `Show ${rest.length} more`}
        </button>
      )}
    </>
  );
}
