// All studies of the tuner.
import { useState } from "preact/hooks";
import { type Maybe, useAsk } from "../lib/api";
import { ago, clock, compact, number, seconds } from "../lib/format";
import { useKeys } from "../lib/keys";
import { hrefOf } from "../lib/route";
import { Empty, Scroll, Status, Waiting } from "../parts/bits";

export interface Estimate {
  value?: number;
  estimate?: number;
  low: number;
  high: number;
}
export interface Importance {
  knob: string;
  set_back_percent: Estimate | null;
  set_back_fails?: boolean;
  variance_total_percent: Estimate | null;
}
export interface Conclusion {
  best?: { config: Record<string, unknown>; estimate: number; low: number; high: number; provisional?: boolean } | null;
  baseline?: { config: Record<string, unknown>; estimate?: number; low?: number; high?: number };
  gain_percent?: { value: number; low: number; high: number } | null;
  importance?: Importance[];
}
export interface StudyRow {
  id: string;
  name: string;
  status: string;
  created_at: number;
  ended_at: Maybe;
  host?: string;
  trials: number;
  failed: number;
  gpu_seconds: number;
  conclusion: Conclusion | null;
}

export function StudiesPage() {
  const answer = useAsk<{ studies: StudyRow[] }>("/studies");
  const rows = answer.data?.studies ?? [];
  const [cursor, setCursor] = useState(-1);
  const move = (by: number) => {
    const next = Math.max(0, Math.min(rows.length - 1, cursor + by));
    setCursor(next);
    document.querySelector<HTMLElement>(`[data-row="${next}"] a`)?.focus();
  };
  useKeys({ j: () => move(1), k: () => move(-1) });
  return (
    <>
      <div class="page-head">
        <h1>Studies</h1>
      </div>
      {!answer.data ? (
        <Waiting {...answer} what="Studies" />
      ) : rows.length === 0 ? (
        <Empty title="No study is recorded yet">
          <p>
            Start one: <code>lockstep tune JOB.yaml</code>
          </p>
        </Empty>
      ) : (
        <Scroll class=" card" label="Studies">
          <table class="rows">
            <thead>
              <tr>
                <th scope="col">Study</th>
                <th scope="col">Status</th>
                <th scope="col" class="figure">
                  Trials
                </th>
                <th scope="col" class="figure">
                  Best
                </th>
                <th scope="col" class="figure">
                  Gain
                </th>
                <th scope="col" class="figure">
                  Device time
                </th>
                <th scope="col">Begun</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row, at) => (
                <tr key={row.id} data-row={at} class={at === cursor ? "at-cursor" : ""}>
                  <td class="cell-name">
                    <a class="row-link" href={hrefOf(["studies", row.id])}>
                      {row.name || row.id}
                    </a>
                    <span class="sub">{row.id}</span>
                  </td>
                  <td>
                    <Status status={row.status} />
                  </td>
                  <td class="figure">
                    {number(row.trials)}
                    {row.failed > 0 && <span class="sub">{number(row.failed)} failed</span>}
                  </td>
                  <td class="figure">{compact(row.conclusion?.best?.estimate)}</td>
                  <td class="figure">
                    {row.conclusion?.gain_percent
                      ? `${row.conclusion.gain_percent.value >= 0 ? "+" : "−"}${Math.abs(row.conclusion.gain_percent.value).toFixed(1)}%`
                      : "–"}
                  </td>
                  <td class="figure">{seconds(row.gpu_seconds)}</td>
                  <td title={clock(row.created_at)}>{ago(row.created_at)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </>
  );
}
