// The machines that runs are on: load, memory, disk and devices, and what health checks said.
import { useEffect } from "preact/hooks";
import { type Maybe, type RunEvent, useAsk } from "../lib/api";
import { ago, bytes, clock, number, percent } from "../lib/format";
import { hrefOf } from "../lib/route";
import { Empty, Scroll, Status, Waiting } from "../parts/bits";

type Values = Record<string, Maybe>;
interface RankReading {
  rank: number;
  host?: string | null;
  time: number;
  values: Values;
}
interface ClusterRun {
  id: string;
  name: string;
  status: string;
  host: string;
  world: number;
  ranks: RankReading[];
  health: RunEvent[];
}
interface Dcgm {
  url: string;
  time: number;
  error?: string;
  gpus?: { gpu: string; uuid: string; host: string; model: string; values: Values }[];
}

const kEveryMs = 5000;

export function ClusterPage() {
  const answer = useAsk<{ runs: ClusterRun[]; dcgm: Dcgm | null }>("/cluster", "cluster");
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && answer.reload(), kEveryMs);
    return () => clearInterval(timer);
  }, []);
  return (
    <>
      <div class="page-head">
        <h1>Cluster</h1>
      </div>
      {!answer.data ? (
        <Waiting {...answer} what="Cluster" />
      ) : answer.data.runs.length === 0 && !answer.data.dcgm ? (
        <Empty title="No run is on, and none has ended in the last ten minutes">
          <p>Machines are shown while runs are on them.</p>
        </Empty>
      ) : (
        <>
          <div class="nodes">
            {answer.data.runs.flatMap((run) =>
              hostsOf(run).map((one) => <HostCard key={`${run.id} ${one.host}`} run={run} {...one} />),
            )}
          </div>
          {answer.data.dcgm && <DcgmTable dcgm={answer.data.dcgm} />}
        </>
      )}
    </>
  );
}

function Gauge({
  label,
  share,
  text,
  warnHigh = true,
}: {
  label: string;
  share: Maybe;
  text: string;
  warnHigh?: boolean;
}) {
  const tone = !warnHigh || typeof share !== "number" ? "" : share > 0.95 ? "bad" : share > 0.85 ? "warn" : "good";
  return (
    <div class="gauge">
      <span>{label}</span>
      {typeof share === "number" ? (
        <span class="meter" aria-hidden="true">
          <span
            class={`meter-fill ${tone || "plain"}`}
            style={{ width: `${Math.max(0, Math.min(100, share * 100))}%` }}
          />
        </span>
      ) : (
        <span />
      )}
      <span class="figure">{text}</span>
    </div>
  );
}

const shareOf = (value: Maybe) => (typeof value === "number" ? value / 100 : null);

// Values of a node come with its first rank, those of a device or process with the rank itself.
function Reading({ reading }: { reading: RankReading }) {
  const { values, rank } = reading;
  const has = (name: string) => typeof values[name] === "number";
  const gpu = [
    bytes(values.gpu_memory_bytes),
    has("gpu_temperature_celsius") ? `${number(values.gpu_temperature_celsius, 3)} °C` : "",
    has("gpu_clock_ratio") ? `clock ${percent(values.gpu_clock_ratio, 0)}` : "",
    values.gpu_throttled ? "▲ throttled" : "",
  ].filter((part) => part && part !== "–");
  return (
    <>
      {has("node_cpu_percent") && (
        <Gauge
          label="CPU"
          share={shareOf(values.node_cpu_percent)}
          text={percent(shareOf(values.node_cpu_percent), 0)}
          warnHigh={false}
        />
      )}
      {has("node_available_bytes") && (
        <Gauge label="Memory" share={null} text={`${bytes(values.node_available_bytes)} free`} />
      )}
      {has("node_disk_free_bytes") && (
        <Gauge label="Disk" share={null} text={`${bytes(values.node_disk_free_bytes)} free`} />
      )}
      {has("gpu_percent") && (
        <Gauge
          label={`GPU of rank ${rank}`}
          share={shareOf(values.gpu_percent)}
          text={gpu.join(", ")}
          warnHigh={false}
        />
      )}
      {has("resident_bytes") && (
        <Gauge
          label={`Rank ${rank}`}
          share={null}
          text={`${bytes(values.resident_bytes)}, ${percent(shareOf(values.cpu_percent), 0)} of a core`}
        />
      )}
    </>
  );
}

// The machines of a run, the first rank's first.
function hostsOf(run: ClusterRun): { host: string; ranks: RankReading[] }[] {
  const found = new Map<string, RankReading[]>([[run.host, []]]);
  for (const reading of run.ranks) {
    const host = reading.host ?? run.host;
    found.set(host, [...(found.get(host) ?? []), reading]);
  }
  return [...found].map(([host, ranks]) => ({ host, ranks }));
}

function HostCard({ run, host, ranks }: { run: ClusterRun; host: string; ranks: RankReading[] }) {
  const newest = Math.max(0, ...ranks.map((reading) => reading.time));
  return (
    <section class="card pad">
      <div class="node-head">
        <h2>{host || "unknown host"}</h2>
        <span class="muted" title={clock(newest)}>
          {newest > 0 ? ago(newest) : ""}
        </span>
      </div>
      <p class="node-run">
        <a href={hrefOf(["runs", run.id])}>{run.name || run.id}</a> <Status status={run.status} />{" "}
        <span class="muted">
          {run.world} {run.world === 1 ? "rank" : "ranks"}
        </span>
      </p>
      {ranks.length === 0 ? (
        <p class="muted">No readings yet.</p>
      ) : (
        ranks.map((reading) => <Reading key={reading.rank} reading={reading} />)
      )}
      {host === run.host && run.health.length > 0 && (
        <ul class="details">
          {[...run.health].reverse().map((event, at) => (
            <li key={at}>
              <span class={`level-${event.level}`}>{event.level}</span> {event.message}{" "}
              <span class="muted">{ago(event.time)}</span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function DcgmTable({ dcgm }: { dcgm: Dcgm }) {
  const gpus = dcgm.gpus ?? [];
  const names = [...new Set(gpus.flatMap((gpu) => Object.keys(gpu.values)))].sort();
  return (
    <section class="card pad gap">
      <h2>DCGM</h2>
      {dcgm.error ? (
        <p class="warning">
          {dcgm.url}: {dcgm.error}
        </p>
      ) : (
        <Scroll label="Devices, as DCGM says">
          <table class="rows">
            <thead>
              <tr>
                <th scope="col">Device</th>
                {names.map((name) => (
                  <th scope="col" class="figure" key={name}>
                    {name.replace(/^dcgm_(fi_)?(dev_|prof_)?/i, "").toLowerCase()}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {gpus.map((gpu) => (
                <tr key={`${gpu.host} ${gpu.uuid} ${gpu.gpu}`}>
                  <th scope="row">
                    {gpu.host} {gpu.gpu} <span class="sub">{gpu.model}</span>
                  </th>
                  {names.map((name) => (
                    <td class="figure" key={name}>
                      {number(gpu.values[name])}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </section>
  );
}
