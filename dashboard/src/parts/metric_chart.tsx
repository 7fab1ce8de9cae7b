// The chart of one metric of one run: asks for as many buckets as it has pixels, asks again for the part that is zoomed
// into, and appends what the stream brings.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { ask, type Band, runPath, type Series } from "../lib/api";
import { metricFormat, metricTitle } from "../lib/format";
import type { Tick } from "../lib/live";
import { Chart, type Curve } from "./chart";

export type TickBus = Set<(tick: Tick) => void>;
export interface Zoom {
  from: number;
  to: number;
}

export interface MetricChartProps {
  runs: { id: string; label: string }[];
  places?: number[]; // which colour and dash each has; by default its place in `runs`
  metric: string;
  rank?: number; // by default the lowest that recorded the metric
  band?: Band | null;
  zoom: Zoom | null;
  setZoom: (zoom: Zoom | null) => void;
  ticks?: TickBus;
  refresh?: number; // another number: what is shown may have holes
}

export const kDashes: (number[] | undefined)[] = [undefined, [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [14, 4]];
const kMostLivePoints = 4000;

function pointsWanted(): number {
  return Math.min(1500, Math.max(300, Math.round(Math.min(window.innerWidth, 1400) / 2)));
}

export function seriesPath(id: string, metric: string, rank: number | undefined, zoom: Zoom | null): string {
  const range = (rank === undefined ? "" : `&rank=${rank}`) + (zoom ? `&from=${zoom.from}&to=${zoom.to}` : "");
  return runPath(id, `/series?metric=${encodeURIComponent(metric)}&points=${pointsWanted()}${range}`);
}

function curveOf(series: Series, label: string, at: number): Curve {
  return {
    label,
    colour: `--c${(at % 6) + 1}`,
    dash: kDashes[at % 6],
    x: series.steps,
    mean: series.mean,
    min: series.min,
    max: series.max,
  };
}

export function MetricChart(props: MetricChartProps) {
  const { runs, metric, rank, zoom, ticks } = props;
  const [curves, setCurves] = useState<Curve[]>([]);
  const [problem, setProblem] = useState<string | null>(null);
  const [loading, setLoading] = useState(true);
  const zoomed = useRef(zoom);
  zoomed.current = zoom;
  const ids = runs.map((run) => run.id).join(",");
  const [whole, setWhole] = useState(0);

  // Before the next frame, not after it: a zoom waits for this.
  useLayoutEffect(() => {
    const stop = new AbortController();
    setLoading(true);
    Promise.all(runs.map((run) => ask<Series>(seriesPath(run.id, metric, rank, zoom), { signal: stop.signal })))
      .then((all) => {
        setCurves(all.map((series, at) => curveOf(series, runs[at].label, props.places?.[at] ?? at)));
        setProblem(null);
        setLoading(false);
      })
      .catch((error: Error) => {
        if (stop.signal.aborted) return;
        setProblem(error.message);
        setLoading(false);
      });
    return () => stop.abort();
  }, [ids, metric, rank, zoom?.from, zoom?.to, props.refresh, whole]);

  useEffect(() => {
    if (!ticks) return;
    const add = (tick: Tick) => {
      const value = tick.values[metric];
      if (value === undefined || zoomed.current) return;
      setCurves((old) => {
        if (old.length !== 1) return old;
        const curve = old[0];
        const last = curve.x[curve.x.length - 1];
        if (last !== undefined && tick.step <= last) return old;
        if (curve.x.length > kMostLivePoints) setWhole((count) => count + 1);
        curve.x.push(tick.step);
        for (const column of [curve.mean, curve.min, curve.max]) column?.push(value);
        return [{ ...curve }];
      });
    };
    ticks.add(add);
    return () => {
      ticks.delete(add);
    };
  }, [ticks, metric]);

  const format = useMemo(() => metricFormat(metric), [metric]);
  const empty = !loading && curves.every((curve) => curve.x.length === 0);
  return (
    <Chart
      title={metricTitle(metric)}
      curves={curves}
      format={format}
      band={props.band}
      sync="steps"
      zoomed={zoom !== null}
      onZoom={(from, to) => props.setZoom({ from, to })}
      onReset={() => props.setZoom(null)}
      loading={loading}
      note={problem ?? (empty ? "not recorded yet" : undefined)}
    />
  );
}
