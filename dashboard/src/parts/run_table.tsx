// Runs as rows; on a narrow screen the same table is read as cards (styles/parts.css).
import { perSecond, type RunRow } from "../lib/api";
import { ago, clock, compact, kDash, number, percent, signedPercent } from "../lib/format";
import { hrefOf } from "../lib/route";
import { Scroll, Status } from "./bits";

interface Props {
  rows: RunRow[];
  selected: string[];
  cursor: number;
  toggle: (id: string) => void;
  pickTag: (tag: string) => void;
}

const known = (value: unknown): value is number => typeof value === "number" && Number.isFinite(value) && value > 0;

// Measured against predicted: a bar that is full when they agree, and the difference in words.
function Against({ row }: { row: RunRow }) {
  const measured = perSecond(row);
  const predicted = row.predicted_per_second;
  if (!known(measured)) return <>{kDash}</>;
  if (!known(predicted)) return <>{compact(measured)}</>;
  const share = measured / predicted;
  const tone = share >= 0.9 ? "good" : share >= 0.75 ? "warn" : "bad";
  return (
    <span class="against" title={`predicted ${compact(predicted)} per second`}>
      <span>{compact(measured)}</span>
      <span class="meter" aria-hidden="true">
        <span class={`meter-fill ${tone}`} style={{ width: `${Math.min(100, share * 80)}%` }} />
        <span class="meter-mark" style={{ left: "80%" }} />
      </span>
      <span class={`delta ${tone}`}>
        {signedPercent(share - 1)}
        <span class="hidden"> against predicted</span>
      </span>
    </span>
  );
}

function Row({ row, at, props }: { row: RunRow; at: number; props: Props }) {
  const chosen = props.selected.includes(row.id);
  const label = row.name || row.id;
  return (
    <tr data-row={at} class={`${at === props.cursor ? "at-cursor" : ""} ${chosen ? "chosen" : ""}`}>
      <td class="cell-check">
        <input
          type="checkbox"
          checked={chosen}
          onChange={() => props.toggle(row.id)}
          aria-label={`Select ${label} for comparison`}
        />
      </td>
      <td class="cell-name">
        <a href={hrefOf(["runs", row.id])} class="row-link">
          {label}
        </a>
        <span class="sub">{[row.model, row.layout].filter(Boolean).join(" · ") || row.id}</span>
        {(row.tags ?? []).length > 0 && (
          <span class="tags">
            {(row.tags ?? []).map((tag) => (
              <button
                type="button"
                class="tag"
                key={tag}
                onClick={() => props.pickTag(tag)}
                title={`Only runs with ${tag}`}
              >
                {tag}
              </button>
            ))}
          </span>
        )}
      </td>
      <td data-label="Status">
        <Status status={row.status} />
        {known(row.alerts) && (
          <span class="alert-count" title="alerts">
            ▲ {row.alerts} {row.alerts === 1 ? "alert" : "alerts"}
          </span>
        )}
      </td>
      <td data-label="Steps" class="figure">
        {number(row.steps)}
      </td>
      <td data-label="Loss" class="figure">
        {number(row.loss)}
      </td>
      <td data-label="Per second" class="figure">
        <Against row={row} />
      </td>
      <td data-label="MFU" class="figure">
        {percent(row.mfu)}
      </td>
      <td data-label="Ranks">
        {row.world} <span class="muted">{row.backend}</span>
      </td>
      <td data-label="Started" title={clock(row.started_at)}>
        {ago(row.started_at)} <span class="sub">{row.host}</span>
      </td>
    </tr>
  );
}

export function RunTable(props: Props) {
  return (
    <Scroll class="card" label="Runs">
      <table class="rows run-rows">
        <thead>
          <tr>
            <th scope="col">
              <span class="hidden">Compare</span>
            </th>
            <th scope="col">Run</th>
            <th scope="col">Status</th>
            <th scope="col" class="figure">
              Steps
            </th>
            <th scope="col" class="figure">
              Loss
            </th>
            <th scope="col" class="figure">
              Per second, against predicted
            </th>
            <th scope="col" class="figure">
              MFU
            </th>
            <th scope="col">Ranks</th>
            <th scope="col">Started</th>
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row, at) => (
            <Row key={row.id} row={row} at={at} props={props} />
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
