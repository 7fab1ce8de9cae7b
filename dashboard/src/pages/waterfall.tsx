// MFU from peak to achieved: every loss in percent, seconds and dollars, predicted beside measured.
import { type Maybe, runPath, useAsk } from "../lib/api";
import { kDash, seconds, usd, words } from "../lib/format";
import { Empty, Scroll, Waiting } from "../parts/bits";
import type { TabProps } from "./run";

interface Amount {
  percent: number; // of the peak
  seconds: number; // of a step
  percent_of_time: number;
  usd_per_day: Maybe;
}
interface Loss {
  key: string;
  name: string;
  outside_of_steps: boolean;
  predicted: Amount | null;
  measured: Amount | null;
}
interface Pair {
  predicted: Maybe;
  measured: Maybe;
}
interface WaterfallData {
  measure: string;
  note: string;
  steps: number;
  has_phases: boolean;
  communication_split_by: string;
  usd_per_day: Maybe;
  step_seconds: Pair;
  ideal_seconds: Pair;
  achieved_percent: Pair;
  overall_percent: Pair;
  losses: Loss[];
}

type Side = "predicted" | "measured";
const kSides: Side[] = ["measured", "predicted"];
// A loss is shown with its sign; what is gained (a term that came out below zero) with a plus.
function points(value: Maybe, total: boolean): string {
  if (typeof value !== "number") return kDash;
  const size = Math.abs(value);
  if (size < 0.005) return "0%";
  return `${total ? "" : value > 0 ? "−" : "+"}${size.toFixed(size < 0.05 ? 2 : 1)}%`;
}

interface Row {
  key: string;
  name: string;
  total: boolean;
  bars: Record<Side, { left: number; width: number } | null>;
  amounts: Record<Side, Amount | null>;
  percents: Pair;
}

// Without a known peak, all computing counts as useful.
const hasPeak = (data: WaterfallData) => data.measure !== "computing";

// Rows from the peak downwards; a loss's bar hangs where the one above it ended.
function rowsOf(data: WaterfallData): Row[] {
  const level: Record<Side, number> = { predicted: 100, measured: 100 };
  const there: Record<Side, boolean> = {
    predicted: data.achieved_percent.predicted !== null,
    measured: data.achieved_percent.measured !== null,
  };
  const total = (key: string, name: string, of: (side: Side) => Maybe): Row => ({
    key,
    name,
    total: true,
    bars: {
      predicted: there.predicted ? { left: 0, width: of("predicted") ?? 0 } : null,
      measured: there.measured ? { left: 0, width: of("measured") ?? 0 } : null,
    },
    amounts: { predicted: null, measured: null },
    percents: { predicted: there.predicted ? of("predicted") : null, measured: there.measured ? of("measured") : null },
  });
  const loss = (one: Loss): Row => {
    const bar = (side: Side) => {
      const amount = one[side];
      if (!amount) return null;
      const top = level[side];
      level[side] -= amount.percent;
      return { left: Math.max(0, Math.min(top, level[side])), width: Math.abs(amount.percent) };
    };
    return {
      key: one.key,
      name: one.name,
      total: false,
      bars: { predicted: bar("predicted"), measured: bar("measured") },
      amounts: { predicted: one.predicted, measured: one.measured },
      percents: { predicted: one.predicted?.percent, measured: one.measured?.percent },
    };
  };
  const counts = (one: Loss) => kSides.some((side) => Math.abs(one[side]?.percent ?? 0) >= 0.005);
  const inside = data.losses.filter((one) => !one.outside_of_steps && counts(one));
  const outside = data.losses.filter((one) => one.outside_of_steps && counts(one));
  const name = { mfu: "MFU", efficiency: "Efficiency", computing: "Computing" }[data.measure] ?? data.measure;
  const rows = [total("peak", hasPeak(data) ? "Peak" : "All of the time", () => 100), ...inside.map(loss)];
  rows.push(total("achieved", `${name} of a step`, (side) => data.achieved_percent[side]));
  if (outside.length > 0) {
    rows.push(
      ...outside.map(loss),
      total("overall", `${name} over all`, (side) => data.overall_percent[side]),
    );
  }
  return rows;
}

export function Waterfall({ detail, refresh }: TabProps) {
  const answer = useAsk<WaterfallData>(runPath(detail.run.id, "/waterfall"), undefined, refresh);
  if (!answer.data) return <Waiting {...answer} what="Waterfall" />;
  const data = answer.data;
  if (data.achieved_percent.measured === null && data.achieved_percent.predicted === null) {
    return <Empty title="Nothing to show yet: no step is recorded and nothing was predicted" />;
  }
  const priced = typeof data.usd_per_day === "number";
  return (
    <>
      <p class="note">
        {hasPeak(data)
          ? "Where the time of a step goes, from the peak of the devices down to what is achieved."
          : "Where the time of a step goes."}
        {data.steps > 0 &&
          ` Measured over ${data.steps.toLocaleString("en-US")} steps of ${seconds(data.step_seconds.measured)}.`}
        {typeof data.step_seconds.predicted === "number" && ` Predicted: ${seconds(data.step_seconds.predicted)}.`}{" "}
        {data.note}
        {!data.has_phases && " Only whole steps were recorded: what is lost is not split."}
        {data.has_phases &&
          data.communication_split_by === "plan" &&
          " Communication is split as the plan predicts it."}
      </p>
      <div class="wf-legend" aria-hidden="true">
        <span class="key">
          <span class="swatch wf-measured" /> measured
        </span>
        <span class="key">
          <span class="swatch wf-predicted" /> predicted
        </span>
      </div>
      <Scroll class="card" label="From peak to achieved">
        <table class="rows waterfall">
          <thead>
            <tr>
              <th scope="col">From peak to achieved</th>
              <th scope="col" class="wf-bar-head">
                <span class="hidden">Bars</span>
              </th>
              <th scope="col" class="figure">
                Measured
              </th>
              <th scope="col" class="figure">
                Predicted
              </th>
              <th scope="col" class="figure">
                Seconds a step
              </th>
              {priced && (
                <th scope="col" class="figure">
                  Dollars a day
                </th>
              )}
            </tr>
          </thead>
          <tbody>
            {rowsOf(data).map((row) => (
              <WaterfallRow key={row.key} row={row} priced={priced} data={data} />
            ))}
          </tbody>
        </table>
      </Scroll>
    </>
  );
}

function WaterfallRow({ row, priced, data }: { row: Row; priced: boolean; data: WaterfallData }) {
  const shown = row.amounts.measured ?? row.amounts.predicted;
  const time =
    row.key === "peak"
      ? (data.ideal_seconds.measured ?? data.ideal_seconds.predicted)
      : row.total
        ? null
        : shown?.seconds;
  const worse = (row.amounts.measured?.percent ?? 0) - (row.amounts.predicted?.percent ?? 0);
  return (
    <tr class={row.total ? "wf-total" : ""}>
      <th scope="row">{words(row.name)}</th>
      <td class="wf-bars">
        {kSides.map((side) => {
          const bar = row.bars[side];
          return bar ? (
            <span
              key={side}
              class={`wf-bar wf-${side} ${row.total ? "wf-level" : "wf-loss"}`}
              style={{ left: `${bar.left}%`, width: `${Math.max(bar.width, 0.15)}%` }}
            />
          ) : null;
        })}
      </td>
      <td class="figure" data-label="measured">
        {points(row.percents.measured, row.total)}
        {!row.total && row.amounts.predicted && row.amounts.measured && worse > 1 && (
          <span class="bad" title="more than predicted">
            {" "}
            ▲<span class="hidden"> more than predicted</span>
          </span>
        )}
      </td>
      <td class="figure muted" data-label="predicted">
        {points(row.percents.predicted, row.total)}
      </td>
      <td class="figure" data-label="seconds">
        {time === null || time === undefined ? "" : seconds(time)}
      </td>
      {priced && (
        <td class="figure" data-label="dollars a day">
          {row.total ? (row.key === "peak" ? usd(data.usd_per_day) : "") : usd(shown?.usd_per_day)}
        </td>
      )}
    </tr>
  );
}
