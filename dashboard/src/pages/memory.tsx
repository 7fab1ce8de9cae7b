// Memory by term: what the plan says a rank holds, beside what the ranks held.
import { type Maybe, runPath, useAsk } from "../lib/api";
import { bytes, percent, words } from "../lib/format";
import { Empty, Scroll, Waiting } from "../parts/bits";
import type { TabProps } from "./run";

interface MemoryData {
  predicted: Record<string, number> | null;
  capacity_bytes: Maybe;
  peak_bytes: Maybe;
  ranks: { rank: number; stage: number; peak_bytes: Maybe; allocated_bytes: Maybe; growth_bytes: Maybe }[];
}

const kTerms = ["parameters", "gradients", "optimizer", "activations", "buffers", "overhead"];
const kPatterns = ["", "stripe", "dots", "stripe-back", "grid", "plain"];

export function Memory({ detail, refresh }: TabProps) {
  const answer = useAsk<MemoryData>(runPath(detail.run.id, "/memory"), undefined, refresh);
  if (!answer.data) return <Waiting {...answer} what="Memory" />;
  const { predicted, capacity_bytes: capacity, peak_bytes: peak, ranks } = answer.data;
  if (!predicted && ranks.length === 0) return <Empty title="Memory is neither predicted nor recorded" />;
  const total = predicted?.total_bytes ?? 0;
  const scale = Math.max(total, peak ?? 0, ...ranks.map((rank) => rank.peak_bytes ?? 0)) * 1.04 || 1;
  const wide = typeof capacity === "number" && capacity < scale * 4 ? Math.max(scale, capacity * 1.02) : scale;
  return (
    <>
      <p class="note">
        {predicted
          ? "Predicted for the rank that holds most, term by term; below it what every rank held at its peak."
          : "This run has no plan: nothing was predicted."}
        {typeof capacity === "number" &&
          ` A device has ${bytes(capacity)}; the peak is ${percent((peak ?? total) / capacity)} of it.`}
      </p>
      <div class="card pad mem">
        {predicted && (
          <div class="mem-row">
            <span class="mem-label">Predicted</span>
            <div class="mem-track">
              {kTerms.map((term, at) => (
                <span
                  key={term}
                  class={`mem-part mem-${at + 1} ${kPatterns[at]}`}
                  style={{ width: `${((predicted[`${term}_bytes`] ?? 0) / wide) * 100}%` }}
                  title={`${words(term)}: ${bytes(predicted[`${term}_bytes`])}`}
                />
              ))}
              <Capacity capacity={capacity} wide={wide} />
            </div>
            <span class="mem-value">{bytes(total)}</span>
          </div>
        )}
        {ranks.map((rank) => (
          <div class="mem-row" key={rank.rank}>
            <span class="mem-label">Rank {rank.rank}</span>
            <div class="mem-track">
              <span class="mem-part mem-measured" style={{ width: `${((rank.peak_bytes ?? 0) / wide) * 100}%` }} />
              <Capacity capacity={capacity} wide={wide} />
            </div>
            <span class="mem-value">{bytes(rank.peak_bytes)}</span>
          </div>
        ))}
      </div>
      <div class="two-columns gap">
        {predicted && <Terms predicted={predicted} total={total} />}
        {ranks.length > 0 && <RankMemory ranks={ranks} total={total} />}
      </div>
    </>
  );
}

function Capacity({ capacity, wide }: { capacity: Maybe; wide: number }) {
  if (typeof capacity !== "number" || capacity > wide) return null;
  return (
    <span class="mem-capacity" style={{ left: `${(capacity / wide) * 100}%` }} title={`Capacity: ${bytes(capacity)}`} />
  );
}

function Terms({ predicted, total }: { predicted: Record<string, number>; total: number }) {
  return (
    <Scroll class="card" label="Predicted terms">
      <table class="rows">
        <thead>
          <tr>
            <th scope="col">Term, predicted</th>
            <th scope="col" class="figure">
              Size
            </th>
            <th scope="col" class="figure">
              Share
            </th>
          </tr>
        </thead>
        <tbody>
          {kTerms.map((term, at) => (
            <tr key={term}>
              <th scope="row">
                <span class={`swatch mem-${at + 1} ${kPatterns[at]}`} aria-hidden="true" /> {words(term)}
              </th>
              <td class="figure">{bytes(predicted[`${term}_bytes`])}</td>
              <td class="figure">{percent((predicted[`${term}_bytes`] ?? 0) / (total || 1))}</td>
            </tr>
          ))}
          <tr class="wf-total">
            <th scope="row">Total</th>
            <td class="figure">{bytes(total)}</td>
            <td class="figure" />
          </tr>
        </tbody>
      </table>
    </Scroll>
  );
}

function RankMemory({ ranks, total }: { ranks: MemoryData["ranks"]; total: number }) {
  const stages = new Set(ranks.map((one) => one.stage)).size;
  return (
    <Scroll class="card" label="Measured by rank">
      <table class="rows">
        <thead>
          <tr>
            <th scope="col">Rank, measured</th>
            <th scope="col" class="figure">
              Peak
            </th>
            <th scope="col" class="figure">
              Of predicted
            </th>
            <th scope="col" class="figure">
              After a step
            </th>
            <th scope="col" class="figure">
              Growth
            </th>
          </tr>
        </thead>
        <tbody>
          {ranks.map((rank) => (
            <tr key={rank.rank}>
              <th scope="row">
                {rank.rank} {stages > 1 && <span class="muted">stage {rank.stage}</span>}
              </th>
              <td class="figure">{bytes(rank.peak_bytes)}</td>
              <td class="figure">{total && rank.peak_bytes ? percent(rank.peak_bytes / total) : ""}</td>
              <td class="figure">{bytes(rank.allocated_bytes)}</td>
              <td class="figure">{bytes(rank.growth_bytes)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
