// The machines that runs are on: load, memory, disk, devices, and what health checks said.
import { useEffect } from "preact/hooks";
import { type Maybe, useAsk } from "../lib/api";
import { ago, bytes, clock, percent } from "../lib/format";
import { hrefOf } from "../lib/route";
import { Empty, Waiting } from "../parts/bits";

interface Device {
  rank?: number;
  gpu_percent?: Maybe;
  gpu_memory_bytes?: Maybe;
  gpu_clock_ratio?: Maybe;
  gpu_temperature_celsius?: Maybe;
  gpu_throttled?: Maybe;
}
interface Node {
  host: string;
  time?: Maybe;
  runs?: { id: string; name: string }[];
  node_cpu_percent?: Maybe;
  node_available_bytes?: Maybe;
  node_disk_free_bytes?: Maybe;
  memory_bytes?: Maybe;
  disk_bytes?: Maybe;
  gpus?: Device[];
}
interface Health {
  time: number;
  level: string;
  message: string;
  run?: string;
  node?: string;
}

export function ClusterPage() {
  const answer = useAsk<{ nodes: Node[]; health?: Health[] }>("/cluster", "cluster");
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && answer.reload(), 5000);
    return () => clearInterval(timer);
  }, []);
  return (
    <>
      <div class="page-head">
        <h1>Cluster</h1>
      </div>
      {!answer.data ? (
        <Waiting {...answer} what="Cluster" />
      ) : answer.data.nodes.length === 0 ? (
        <Empty title="No machine has reported yet">
          <p>Agents report while a run is on.</p>
        </Empty>
      ) : (
        <div class="nodes">
          {answer.data.nodes.map((node) => (
            <NodeCard key={node.host} node={node} />
          ))}
        </div>
      )}
      {answer.data?.health && answer.data.health.length > 0 && <HealthList list={answer.data.health} />}
    </>
  );
}

function Gauge({ label, share, text }: { label: string; share: Maybe; text: string }) {
  if (typeof share !== "number") return null;
  const tone = share > 0.95 ? "bad" : share > 0.85 ? "warn" : "good";
  return (
    <div class="gauge">
      <span>{label}</span>
      <span class="meter" aria-hidden="true">
        <span class={`meter-fill ${tone}`} style={{ width: `${Math.max(0, Math.min(100, share * 100))}%` }} />
      </span>
      <span>{text}</span>
    </div>
  );
}

function NodeCard({ node }: { node: Node }) {
  const used = (free: Maybe, all: Maybe) => (typeof free === "number" && all ? 1 - free / all : null);
  const memory = used(node.node_available_bytes, node.memory_bytes);
  const disk = used(node.node_disk_free_bytes, node.disk_bytes);
  const cpu = typeof node.node_cpu_percent === "number" ? node.node_cpu_percent / 100 : null;
  return (
    <section class="card pad">
      <div class="node-head">
        <h2>{node.host}</h2>
        <span class="muted" title={clock(node.time)}>
          {ago(node.time)}
        </span>
      </div>
      <Gauge label="CPU" share={cpu} text={percent(cpu, 0)} />
      <Gauge label="Memory" share={memory} text={`${bytes(node.node_available_bytes)} free`} />
      <Gauge label="Disk" share={disk} text={`${bytes(node.node_disk_free_bytes)} free`} />
      {(node.gpus ?? []).map((gpu, at) => (
        <Gauge
          key={at}
          label={`GPU ${gpu.rank ?? at}`}
          share={typeof gpu.gpu_percent === "number" ? gpu.gpu_percent / 100 : null}
          text={[
            bytes(gpu.gpu_memory_bytes),
            gpu.gpu_temperature_celsius ? `${gpu.gpu_temperature_celsius.toFixed(0)} °C` : "",
            gpu.gpu_throttled ? "▲ throttled" : "",
          ]
            .filter(Boolean)
            .join(", ")}
        />
      ))}
      {(node.runs ?? []).length > 0 && (
        <p class="sub">
          {(node.runs ?? []).map((run) => (
            <a key={run.id} href={hrefOf(["runs", run.id])}>
              {run.name || run.id}{" "}
            </a>
          ))}
        </p>
      )}
    </section>
  );
}

function HealthList({ list }: { list: Health[] }) {
  return (
    <section class="card pad gap">
      <h2>Health checks</h2>
      <ul class="details">
        {list.map((one, at) => (
          <li key={at}>
            <span class={`level-${one.level}`}>{one.level}</span> {one.node} {one.message}{" "}
            <span class="muted">{ago(one.time)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}
