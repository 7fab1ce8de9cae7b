// One run: its header, its tabs, and the stream that keeps both fresh.
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, type RunDetail, type RunEvent, runPath, perSecond as storedRate, useAsk } from "../lib/api";
import { ago, clock, compact, number, percent, seconds, signedPercent } from "../lib/format";
import { useKeys } from "../lib/keys";
import { type Tick, useLive } from "../lib/live";
import { go, hrefOf } from "../lib/route";
import { LivePill, Status, Tile, Waiting } from "../parts/bits";
import type { TickBus } from "../parts/metric_chart";
import { TagEditor } from "../parts/tag_editor";
import { Diagnosis } from "./diagnosis";
import { Incidents } from "./incidents";
import { JobTab } from "./job";
import { Memory } from "./memory";
import { Overview } from "./overview";
import { Ranks } from "./ranks";
import { TimelineTab } from "./timeline";
import { Waterfall } from "./waterfall";

export interface TabProps {
  detail: RunDetail;
  query: URLSearchParams;
  ticks: TickBus;
  refresh: number; // rises when what was asked before may be old
}

const kTabs: { key: string; label: string; View: (props: TabProps) => preact.JSX.Element }[] = [
  { key: "overview", label: "Overview", View: Overview },
  { key: "waterfall", label: "Waterfall", View: Waterfall },
  { key: "ranks", label: "Ranks", View: Ranks },
  { key: "timeline", label: "Timeline", View: TimelineTab },
  { key: "memory", label: "Memory", View: Memory },
  { key: "incidents", label: "Incidents", View: Incidents },
  { key: "diagnosis", label: "Diagnosis", View: Diagnosis },
  { key: "job", label: "Job", View: JobTab },
];

const kAgainMs = 15_000;

export function RunPage({ id, tab, query }: { id: string; tab: string; query: URLSearchParams }) {
  const detail = useAsk<RunDetail>(runPath(id));
  const ticks = useRef<TickBus>(new Set()).current;
  const [newest, setNewest] = useState<Tick | null>(null);
  const [refresh, setRefresh] = useState(0);
  const running = detail.data?.run.status === "running";
  const live = useLive(
    detail.data && running ? runPath(id, "/stream") : null,
    {
      tick: (tick: Tick) => {
        setNewest(tick);
        for (const hear of ticks) hear(tick);
      },
      event: (event: RunEvent) => {
        if (event.kind === "alert") detail.reload();
        // Evaluations are too rare for ticks.
        if (tab !== "overview" || event.kind === "evaluation") setRefresh((count) => count + 1);
      },
      end: () => {
        detail.reload();
        setRefresh((count) => count + 1);
      },
    },
    detail.data !== null && !running,
  );
  const wasStale = useRef(false);
  useEffect(() => {
    if (live === "live" && wasStale.current) setRefresh((count) => count + 1);
    wasStale.current = live === "stale";
  }, [live]);
  // Charts grow by the stream; what is made of the whole run is asked for again now and then.
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => {
      if (document.visibilityState !== "visible") return;
      detail.reload();
      if (tab !== "overview") setRefresh((count) => count + 1);
    }, kAgainMs);
    return () => clearInterval(timer);
  }, [running, tab]);
  const open = (key: string) => go(hrefOf(["runs", id, key]));
  const keys: Record<string, () => void> = {};
  kTabs.forEach((entry, at) => {
    keys[String(at + 1)] = () => open(entry.key);
  });
  useKeys(keys);
  useEffect(() => {
    document.title = `${detail.data?.run.name ?? id} · Lockstep`;
    return () => {
      document.title = "Lockstep";
    };
  }, [detail.data?.run.name]);

  if (!detail.data) return <Waiting {...detail} what={`Run ${id}`} />;
  const shown = kTabs.find((entry) => entry.key === tab) ?? kTabs[0];
  return (
    <>
      <RunHead detail={detail.data} newest={newest} live={live} reload={detail.reload} />
      <nav class="tabs" aria-label="Views of the run">
        {kTabs.map((entry, at) => (
          <a
            key={entry.key}
            href={hrefOf(["runs", id, entry.key])}
            aria-current={entry === shown ? "page" : undefined}
            title={`${entry.label} (${at + 1})`}
          >
            {entry.label}
          </a>
        ))}
      </nav>
      <shown.View detail={detail.data} query={query} ticks={ticks} refresh={refresh} />
    </>
  );
}

function RunHead(props: {
  detail: RunDetail;
  newest: Tick | null;
  live: ReturnType<typeof useLive>;
  reload: () => void;
}) {
  const { detail, newest, live } = props;
  const { run, unit } = detail;
  const alerts = run.alerts ?? 0;
  const save = async (tags: string[]) => {
    await ask(runPath(run.id, "/tags"), { body: { tags } });
    props.reload();
  };
  return (
    <>
      <div class="page-head run-head">
        <div class="run-title">
          <p class="crumbs">
            <a href="#/runs">Runs</a> <span aria-hidden="true">/</span> <span class="mono">{run.id}</span>
          </p>
          <h1>{run.name || run.id}</h1>
        </div>
        <div class="run-state">
          <Status status={run.status} />
          <LivePill state={live} />
          {alerts > 0 && (
            <a class="alert-count" href={hrefOf(["runs", run.id, "incidents"])}>
              ▲ {alerts} {alerts === 1 ? "alert" : "alerts"}
            </a>
          )}
        </div>
      </div>
      <p class="run-line">
        {[run.model, run.layout, `${run.world} ${run.world === 1 ? "rank" : "ranks"}`, run.backend, run.host]
          .filter(Boolean)
          .join(" · ")}
        <span title={clock(run.started_at)}> · started {ago(run.started_at)}</span>
      </p>
      <TagEditor tags={run.tags ?? []} save={save} />
      {run.exit_reason && (
        <p class="warning">
          <strong>Ended:</strong> {run.exit_reason}
        </p>
      )}
      <Tiles detail={detail} newest={newest} unit={unit} />
    </>
  );
}

function Tiles({ detail, newest, unit }: { detail: RunDetail; newest: Tick | null; unit: string }) {
  const { run, predicted } = detail;
  const fresh = (name: string, stored: number | null | undefined) => newest?.values[name] ?? stored;
  const perSecond = fresh(`${unit}_per_second`, storedRate(run));
  const expected = predicted[`${unit}_per_second`]?.expected ?? run.predicted_per_second;
  const residual = perSecond && expected ? perSecond / expected - 1 : null;
  const tone = residual === null ? "" : residual >= -0.1 ? "good" : residual >= -0.25 ? "warn" : "bad";
  const useful = detail.metrics.includes("mfu") ? "mfu" : "efficiency";
  const share = fresh(useful, useful === "mfu" ? run.mfu : run.efficiency);
  const goodput = newest?.values.goodput ?? run.goodput;
  const ran = (run.ended_at || Date.now() / 1000) - run.started_at;
  return (
    <dl class="tiles">
      <Tile label="Step" value={number(newest?.step ?? run.steps)} note={stepsNote(detail)} />
      <Tile label="Loss" value={number(fresh("loss", run.loss))} />
      <Tile
        label={`${unit} per second`}
        value={compact(perSecond)}
        note={residual === null ? undefined : `${signedPercent(residual)} against predicted`}
        tone={tone}
      />
      {typeof share === "number" && (
        <Tile
          label={useful === "mfu" ? "MFU" : "Efficiency"}
          value={percent(share)}
          note={predicted[useful]?.expected != null ? `predicted ${percent(predicted[useful]?.expected)}` : undefined}
        />
      )}
      {goodput != null && <Tile label="Goodput" value={percent(goodput)} />}
      <Tile label={run.status === "running" ? "Running for" : "Ran for"} value={seconds(ran)} />
    </dl>
  );
}

function stepsNote(detail: RunDetail): string | undefined {
  const wanted = detail.run.job_yaml?.match(/^steps:\s*(\d+)/m)?.[1];
  return wanted ? `of ${number(Number(wanted))}` : undefined;
}
