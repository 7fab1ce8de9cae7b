// One study: every trial, the best so far, and what each knob is worth.
import { useMemo } from "preact/hooks";
import { type Json, type Maybe, useAsk } from "../lib/api";
import { compact, kDash, number, seconds, words } from "../lib/format";
import { Code, Scroll, Status, Tile, Waiting } from "../parts/bits";
import { Chart, type Curve } from "../parts/chart";
import type { Conclusion, Importance, StudyRow } from "./studies";

interface Trial {
  trial: number;
  attempt: number;
  state: string;
  seconds: number;
  purpose: string;
  outcome: string | null;
  throughput: Maybe;
  config: Record<string, Json>;
  message: string | null;
}
interface StudyData {
  study: StudyRow & { space?: string; options?: { unit?: string } };
  trials: Trial[];
}

function curvesOf(trials: Trial[]): Curve[] {
  const measured = trials.filter((trial) => typeof trial.throughput === "number").sort((a, b) => a.trial - b.trial);
  const x = measured.map((trial) => trial.trial);
  const values = measured.map((trial) => trial.throughput as number);
  let most = 0;
  const best = values.map((value) => {
    most = Math.max(most, value);
    return most;
  });
  return [
    { label: "trials", colour: "--c1", x, mean: values, points: true },
    { label: "best so far", colour: "--c2", x, mean: best, dash: [8, 4] },
  ];
}

export function StudyPage({ id }: { id: string }) {
  const answer = useAsk<StudyData>(`/studies/${encodeURIComponent(id)}`);
  const curves = useMemo(() => curvesOf(answer.data?.trials ?? []), [answer.data]);
  if (!answer.data) return <Waiting {...answer} what={`Study ${id}`} />;
  const { study, trials } = answer.data;
  const found = study.conclusion;
  const best = found?.best;
  const failed = trials.filter((trial) => trial.outcome && trial.outcome !== "measured").length;
  return (
    <>
      <div class="page-head run-head">
        <div class="run-title">
          <p class="crumbs">
            <a href="#/studies">Studies</a> <span aria-hidden="true">/</span> <span class="mono">{study.id}</span>
          </p>
          <h1>{study.name || study.id}</h1>
        </div>
        <Status status={study.status} />
      </div>
      <dl class="tiles">
        <Tile label="Trials" value={number(trials.length)} note={failed > 0 ? `${failed} failed` : undefined} />
        <Tile
          label="Best"
          value={compact(best?.estimate)}
          note={
            best
              ? `${compact(best.low)} to ${compact(best.high)}${best.provisional ? ", not confirmed" : ""}`
              : undefined
          }
        />
        <Tile label="Default" value={compact(found?.baseline?.estimate)} />
        <Tile
          label="Gain"
          value={found?.gain_percent ? `${found.gain_percent.value.toFixed(1)}%` : kDash}
          note={
            found?.gain_percent
              ? `${found.gain_percent.low.toFixed(1)}% to ${found.gain_percent.high.toFixed(1)}%`
              : undefined
          }
        />
        <Tile label="Device time" value={seconds(study.gpu_seconds)} />
      </dl>
      <div class="charts wide">
        <Chart title="Throughput of the trials" curves={curves} format={compact} xTitle="trial" height={240} />
        <ImportanceCard found={found} />
      </div>
      <div class="two-columns gap">
        <BestConfig found={found} />
        {study.space && (
          <section class="card pad">
            <h2>Space</h2>
            <Code text={study.space} label="Space of the study" />
          </section>
        )}
      </div>
      <Trials trials={trials} />
    </>
  );
}

const worth = (one: Importance): number => one.set_back_percent?.value ?? one.variance_total_percent?.value ?? 0;

function ImportanceCard({ found }: { found: Conclusion | null }) {
  const entries = [...(found?.importance ?? [])].sort((a, b) => Math.abs(worth(b)) - Math.abs(worth(a))).slice(0, 12);
  const most = Math.max(1e-9, ...entries.map((one) => Math.abs(worth(one))));
  const measured = entries.some((one) => one.set_back_percent);
  return (
    <section class="card pad">
      <h2>What each knob is worth</h2>
      {entries.length === 0 ? (
        <p class="muted">Known when the study has ended.</p>
      ) : (
        <>
          <p class="note">
            {measured
              ? "Loss of throughput when the knob alone goes back to its default."
              : "Share of the variance of throughput."}
          </p>
          <table class="bars">
            <tbody>
              {entries.map((one) => {
                const range = one.set_back_percent ?? one.variance_total_percent;
                return (
                  <tr key={one.knob}>
                    <th scope="row">{one.knob}</th>
                    <td class="bar-cell">
                      <span class="bar" style={{ width: `${(Math.abs(worth(one)) / most) * 100}%` }} />
                    </td>
                    <td class="figure">
                      {one.set_back_fails ? "fails without" : `${worth(one).toFixed(1)}%`}
                      {range && !one.set_back_fails && (
                        <span class="sub">
                          {range.low.toFixed(1)} to {range.high.toFixed(1)}
                        </span>
                      )}
                    </td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </>
      )}
    </section>
  );
}

function BestConfig({ found }: { found: Conclusion | null }) {
  const best = found?.best?.config;
  if (!best) return null;
  const base = found?.baseline?.config ?? {};
  return (
    <section class="card pad">
      <h2>Best setting</h2>
      <table class="rows">
        <thead>
          <tr>
            <th scope="col">Knob</th>
            <th scope="col">Best</th>
            <th scope="col">Default</th>
          </tr>
        </thead>
        <tbody>
          {Object.entries(best).map(([knob, value]) => {
            const same = JSON.stringify(base[knob]) === JSON.stringify(value);
            return (
              <tr key={knob}>
                <th scope="row">{knob}</th>
                <td class={same ? "muted" : "differs"}>{String(value)}</td>
                <td class="muted">{base[knob] === undefined ? kDash : String(base[knob])}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}

function Trials({ trials }: { trials: Trial[] }) {
  const knobs = [...new Set(trials.flatMap((trial) => Object.keys(trial.config)))];
  const sorted = [...trials].sort((a, b) => (b.throughput ?? -1) - (a.throughput ?? -1));
  return (
    <details class="card pad gap">
      <summary>
        <h2 class="inline">Trials, fastest first</h2> <span class="muted">{trials.length}</span>
      </summary>
      <Scroll class="" label="Trials">
        <table class="rows">
          <thead>
            <tr>
              <th scope="col" class="figure">
                Trial
              </th>
              <th scope="col">Purpose</th>
              <th scope="col">Outcome</th>
              <th scope="col" class="figure">
                Throughput
              </th>
              {knobs.map((knob) => (
                <th scope="col" key={knob}>
                  {knob}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {sorted.map((trial) => (
              <tr key={`${trial.trial}.${trial.attempt}`} title={trial.message ?? undefined}>
                <td class="figure">{trial.trial}</td>
                <td>{words(trial.purpose)}</td>
                <td class={trial.outcome && trial.outcome !== "measured" ? "bad" : ""}>
                  {trial.outcome ?? trial.state}
                </td>
                <td class="figure">{compact(trial.throughput)}</td>
                {knobs.map((knob) => (
                  <td key={knob}>{trial.config[knob] === undefined ? "" : String(trial.config[knob])}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </details>
  );
}
