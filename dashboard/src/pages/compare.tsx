// Two to six runs over each other, and what differs between them.
import { useEffect, useState } from "preact/hooks";
import { ask, perSecond, type RunDetail, runPath } from "../lib/api";
import { compact, kDash, number, percent, seconds } from "../lib/format";
import { go, hrefOf } from "../lib/route";
import { Empty, Scroll, Status, Waiting } from "../parts/bits";
import { kDashes, MetricChart } from "../parts/metric_chart";
import { zoomOf } from "./overview";
import { kMostCompared } from "./runs";

const kCompared = [
  "loss",
  "tokens_per_second",
  "samples_per_second",
  "mfu",
  "efficiency",
  "step_seconds",
  "memory_bytes",
  "gradient_norm",
  "goodput",
  "evaluation_loss",
  "comm_seconds",
  "learning_rate",
];

const kLetters = "ABCDEF";

export function ComparePage({ query }: { query: URLSearchParams }) {
  const ids = (query.get("runs") ?? "").split(",").filter(Boolean).slice(0, kMostCompared);
  const key = ids.join(",");
  const [details, setDetails] = useState<RunDetail[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [again, setAgain] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    setDetails(null);
    setProblem(null);
    Promise.all(ids.map((id) => ask<RunDetail>(runPath(id), { signal: stop.signal })))
      .then(setDetails)
      .catch((error: Error) => !stop.signal.aborted && setProblem(error.message));
    return () => stop.abort();
  }, [key, again]);
  if (ids.length < 2) {
    return (
      <Empty title="Choose two to six runs to compare">
        <a href="#/runs">All runs</a>
      </Empty>
    );
  }
  if (!details) {
    return <Waiting error={problem} loading={!problem} reload={() => setAgain(again + 1)} what="Runs to compare" />;
  }
  const zoom = zoomOf(query);
  const runs = details.map((detail, at) => ({ id: detail.run.id, label: `${kLetters[at]} ${detail.run.name}` }));
  const metrics = kCompared.filter((name) => details.filter((detail) => detail.metrics.includes(name)).length > 0);
  return (
    <>
      <div class="page-head">
        <h1>Compare {details.length} runs</h1>
      </div>
      <Differences details={details} />
      <div class="charts wide">
        {metrics.map((metric) => (
          <MetricChart
            key={metric}
            runs={runs.filter((_, at) => details[at].metrics.includes(metric))}
            places={runs.map((_, at) => at).filter((at) => details[at].metrics.includes(metric))}
            metric={metric}
            zoom={zoom}
            setZoom={(next) => go(hrefOf(["compare"], { runs: key, from: next?.from, to: next?.to }), true)}
          />
        ))}
      </div>
    </>
  );
}

// "batch.micro" -> "4", of every line of a job file that has a plain value.
export function flatYaml(text: string): Map<string, string> {
  const found = new Map<string, string>();
  const path: { indent: number; key: string }[] = [];
  for (const line of text.split("\n")) {
    const match = line.match(/^(\s*)([\w.-]+):\s*(.*?)\s*(#.*)?$/);
    if (!match) continue;
    const indent = match[1].length;
    while (path.length > 0 && path[path.length - 1].indent >= indent) path.pop();
    const key = [...path.map((part) => part.key), match[2]].join(".");
    if (match[3] === "") path.push({ indent, key: match[2] });
    else found.set(key, match[3]);
  }
  return found;
}

function Differences({ details }: { details: RunDetail[] }) {
  const jobs = details.map((detail) => flatYaml(detail.run.job_yaml ?? ""));
  const rows: [string, string[]][] = [
    ["Model", details.map((one) => one.run.model ?? kDash)],
    ["Layout", details.map((one) => one.run.layout ?? kDash)],
    ["Ranks", details.map((one) => `${one.run.world} ${one.run.backend ?? ""}`)],
    ["Steps", details.map((one) => number(one.run.steps))],
    ["Loss", details.map((one) => number(one.run.loss))],
    ["Per second", details.map((one) => `${compact(perSecond(one.run))} ${one.unit}`)],
    ["MFU", details.map((one) => percent(one.run.mfu))],
    ["Ran for", details.map((one) => seconds((one.run.ended_at || Date.now() / 1000) - one.run.started_at))],
  ];
  for (const key of [...new Set(jobs.flatMap((job) => [...job.keys()]))].sort()) {
    const values = jobs.map((job) => job.get(key) ?? kDash);
    if (new Set(values).size > 1) rows.push([key, values]);
  }
  return (
    <Scroll class=" card compare-table" label="What differs">
      <table class="rows">
        <thead>
          <tr>
            <th scope="col">
              <span class="hidden">What</span>
            </th>
            {details.map((one, at) => (
              <th scope="col" key={one.run.id}>
                <svg width="22" height="8" aria-hidden="true">
                  <line
                    x1="0"
                    y1="4"
                    x2="22"
                    y2="4"
                    stroke-width="2.5"
                    style={{ stroke: `var(--c${at + 1})` }}
                    stroke-dasharray={kDashes[at]?.join(" ")}
                  />
                </svg>{" "}
                {kLetters[at]} <a href={hrefOf(["runs", one.run.id])}>{one.run.name || one.run.id}</a>{" "}
                <Status status={one.run.status} />
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(([what, values]) => {
            const differs = new Set(values).size > 1;
            return (
              <tr key={what}>
                <th scope="row">{what}</th>
                {values.map((value, at) => (
                  <td key={at} class={differs ? "differs" : "muted"}>
                    {value}
                  </td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
    </Scroll>
  );
}
