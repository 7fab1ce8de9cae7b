// What every rank did in one step.
import { useMemo } from "preact/hooks";
import { runPath, type Timeline, useAsk } from "../lib/api";
import { number, seconds, words } from "../lib/format";
import { useKeys } from "../lib/keys";
import { go, hrefOf } from "../lib/route";
import { type Layout, layOut } from "../lib/spans";
import { Empty, Scroll, Waiting } from "../parts/bits";
import { kKindColours, TimelineCanvas } from "../parts/timeline_canvas";
import type { TabProps } from "./run";

export function TimelineTab({ detail, query }: TabProps) {
  const { run, span_steps: steps } = detail;
  const asked = query.get("step");
  const step = asked === null ? undefined : Number(asked);
  const answer = useAsk<Timeline>(
    steps.length > 0 ? runPath(run.id, `/timeline${step === undefined ? "" : `?step=${step}`}`) : null,
    "timeline",
  );
  const layout = useMemo(
    () => (answer.data && answer.data.ranks.length > 0 ? layOut(answer.data) : null),
    [answer.data],
  );
  const shown = answer.data?.step ?? step ?? steps[steps.length - 1];
  const at = steps.indexOf(shown);
  const open = (next: number | undefined) =>
    next !== undefined && go(hrefOf(["runs", run.id, "timeline"], { step: next }), true);
  useKeys({ "[": () => open(steps[at - 1]), "]": () => open(steps[at + 1]) });
  if (steps.length === 0) return <Empty title="No spans are recorded of this run" />;
  if (!answer.data) return <Waiting {...answer} what="Timeline" />;
  return (
    <>
      <div class="toolbar">
        <button
          type="button"
          disabled={at <= 0}
          onClick={() => open(steps[at - 1])}
          aria-label="Previous recorded step"
        >
          ‹
        </button>
        <label>
          Step
          <select value={shown} onChange={(event) => open(Number(event.currentTarget.value))}>
            {(at < 0 ? [shown, ...steps] : steps).map((one) => (
              <option key={one} value={one}>
                {number(one)}
              </option>
            ))}
          </select>
        </label>
        <button
          type="button"
          disabled={at < 0 || at + 1 >= steps.length}
          onClick={() => open(steps[at + 1])}
          aria-label="Next recorded step"
        >
          ›
        </button>
        {layout && (
          <span class="muted">
            {seconds(layout.length / 1e6)}, {number(layout.boxes.length)} spans
            {layout.aligned ? "; clocks of the nodes are aligned by their collectives" : ""}
          </span>
        )}
      </div>
      {layout ? (
        <>
          <Legend layout={layout} />
          <TimelineCanvas layout={layout} />
          <Totals layout={layout} />
        </>
      ) : (
        <Empty title={`No spans of step ${number(shown)} are kept`} />
      )}
    </>
  );
}

function Legend({ layout }: { layout: Layout }) {
  const kinds = [...new Set(layout.boxes.map((box) => box.kind))];
  return (
    <div class="wf-legend" aria-hidden="true">
      {kinds.map((kind) => (
        <span class="key" key={kind}>
          <span
            class={`swatch ${kind === "wait" ? "stripe" : ""}`}
            style={{ backgroundColor: `var(${kKindColours[kind] ?? "--predicted"})` }}
          />{" "}
          {kind.replace("_", " ")}
        </span>
      ))}
    </div>
  );
}

// The same in figures: seconds of each kind on each rank.
function Totals({ layout }: { layout: Layout }) {
  const ranks = [...new Set(layout.boxes.map((box) => box.rank))];
  const kinds = [...new Set(layout.boxes.map((box) => box.kind))];
  const total = new Map<string, number>();
  for (const box of layout.boxes) {
    const key = `${box.rank} ${box.kind}`;
    total.set(key, (total.get(key) ?? 0) + (box.end - box.begin) / 1e6);
  }
  return (
    <Scroll class=" card gap" label="Seconds of each kind">
      <table class="rows">
        <thead>
          <tr>
            <th scope="col">Rank</th>
            {kinds.map((kind) => (
              <th scope="col" class="figure" key={kind}>
                {words(kind)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {ranks.map((rank) => (
            <tr key={rank}>
              <th scope="row">{rank}</th>
              {kinds.map((kind) => (
                <td class="figure" key={kind}>
                  {total.has(`${rank} ${kind}`) ? seconds(total.get(`${rank} ${kind}`)) : ""}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
