// What happened to the run: one time line of training, incidents, alerts and checkpoints, then each as a story.
import { useState } from "preact/hooks";
import { type Maybe, type RunEvent, runPath, useAsk } from "../lib/api";
import { bytes, clock, clockShort, number, percent, seconds, words } from "../lib/format";
import { CopyButton, Empty, Scroll, Tile, Waiting } from "../parts/bits";
import { EventLine, type Mark } from "../parts/event_line";
import { commandOf } from "./diagnosis";
import type { TabProps } from "./run";

interface Incident {
  kind: string;
  level: string;
  began_at: number;
  ended_at: Maybe;
  down_seconds: number;
  lost_steps: number;
  lost_seconds: number;
  step: number;
  ranks: number[];
  what: string;
  details: string[];
  rule: string;
  fix: string;
  cost_percent: number;
}
interface IncidentData {
  incidents: Incident[];
  checkpoints: { time: number; step: number; seconds: number; stall_seconds: number; bytes: number; path: string }[];
}
interface GoodputData {
  goodput: Maybe;
  elapsed_seconds: number;
  useful_seconds: number;
  checkpoint_seconds: number;
  lost_seconds: number;
  recovery_seconds: number;
  start_seconds: number;
  other_seconds: number;
  line: { period: string; begin: number; end: number }[];
}

export function Incidents({ detail, refresh }: TabProps) {
  const id = detail.run.id;
  const incidents = useAsk<IncidentData>(runPath(id, "/incidents"), undefined, refresh);
  const goodput = useAsk<GoodputData>(runPath(id, "/goodput"), undefined, refresh);
  const events = useAsk<{ events: RunEvent[]; more: boolean }>(runPath(id, "/events?limit=500"), undefined, refresh);
  if (!incidents.data) return <Waiting {...incidents} what="Incidents" />;
  const { incidents: list, checkpoints } = incidents.data;
  const begin = detail.run.started_at;
  const end = Math.max(detail.run.ended_at || Date.now() / 1000, begin + 1);
  const marks: Mark[] = [
    ...checkpoints.map(
      (one): Mark => ({ lane: "checkpoints", time: one.time, level: "info", text: `Checkpoint, step ${one.step}` }),
    ),
    ...list.map(
      (one): Mark => ({
        lane: one.kind === "alert" ? "alerts" : "incidents",
        time: one.began_at,
        until: one.ended_at ?? undefined,
        level: one.level,
        text: one.what,
      }),
    ),
  ];
  return (
    <>
      {goodput.data && (
        <GoodputTiles data={goodput.data} lostSteps={list.reduce((sum, one) => sum + one.lost_steps, 0)} />
      )}
      <EventLine begin={begin} end={end} marks={marks} periods={goodput.data?.line ?? []} />
      {list.length === 0 ? (
        <Empty title="✓ Nothing happened">
          <p>
            No failure, alert or recovery is recorded
            {checkpoints.length > 0 ? `; ${checkpoints.length} checkpoints were saved` : ""}.
          </p>
        </Empty>
      ) : (
        <ol class="findings gap">
          {[...list].reverse().map((one, at) => (
            <Story key={at} incident={one} />
          ))}
        </ol>
      )}
      {checkpoints.length > 0 && <Checkpoints list={checkpoints} />}
      {events.data && events.data.events.length > 0 && <Events list={events.data.events} />}
    </>
  );
}

function GoodputTiles({ data, lostSteps }: { data: GoodputData; lostSteps: number }) {
  return (
    <dl class="tiles">
      <Tile label="Goodput" value={percent(data.goodput)} note={`of ${seconds(data.elapsed_seconds)}`} />
      <Tile
        label="Lost work"
        value={seconds(data.lost_seconds)}
        note={lostSteps > 0 ? `${number(lostSteps)} steps` : undefined}
      />
      <Tile label="Recovery" value={seconds(data.recovery_seconds)} />
      <Tile label="Checkpoint stalls" value={seconds(data.checkpoint_seconds)} />
      <Tile label="Start" value={seconds(data.start_seconds)} />
      <Tile label="Between steps" value={seconds(data.other_seconds)} />
    </dl>
  );
}

const kLevelSigns: Record<string, string> = { error: "✕", warning: "▲", info: "●", debug: "·" };

function Story({ incident }: { incident: Incident }) {
  const facts = [
    incident.step >= 0 ? `step ${number(incident.step)}` : "",
    incident.ranks.length > 0
      ? `${incident.ranks.length === 1 ? "rank" : "ranks"} ${incident.ranks.slice(0, 16).join(", ")}`
      : "",
    incident.down_seconds > 0 ? `down ${seconds(incident.down_seconds)}` : "",
    incident.lost_steps > 0
      ? `${number(incident.lost_steps)} steps done again (${seconds(incident.lost_seconds)})`
      : "",
    incident.cost_percent > 0 ? `costs ${incident.cost_percent.toFixed(1)}%` : "",
    incident.ended_at ? `over after ${seconds(incident.ended_at - incident.began_at)}` : "",
  ].filter(Boolean);
  return (
    <li class="finding card">
      <div class="finding-head">
        <h2>
          <span class={`level-${incident.level}`}>
            <span aria-hidden="true">{kLevelSigns[incident.level] ?? "●"} </span>
            {words(incident.kind)}
          </span>
          {incident.rule && <span class="muted"> {incident.rule}</span>}
        </h2>
        <time class="muted" title={clock(incident.began_at)}>
          {clockShort(incident.began_at)}
        </time>
      </div>
      <p class="finding-evidence">{incident.what}</p>
      {facts.length > 0 && <p class="muted">{facts.join(" · ")}</p>}
      {incident.details.length > 0 && (
        <details>
          <summary>{incident.details.length} more lines</summary>
          <ul class="details">
            {incident.details.map((line, at) => (
              <li key={at}>{line}</li>
            ))}
          </ul>
        </details>
      )}
      {incident.fix && (
        <div class="finding-fix">
          <h3>What to do</h3>
          <p>{incident.fix}</p>
          <CopyButton text={commandOf(incident.fix)} label="Copy" />
        </div>
      )}
    </li>
  );
}

function Checkpoints({ list }: { list: IncidentData["checkpoints"] }) {
  return (
    <details class="card pad gap" open={list.length <= 8}>
      <summary>
        <h2 class="inline">Checkpoints</h2> <span class="muted">{list.length}</span>
      </summary>
      <Scroll class="" label="Checkpoints">
        <table class="rows">
          <thead>
            <tr>
              <th scope="col">Time</th>
              <th scope="col" class="figure">
                Step
              </th>
              <th scope="col" class="figure">
                Stall
              </th>
              <th scope="col" class="figure">
                Until durable
              </th>
              <th scope="col" class="figure">
                Size
              </th>
              <th scope="col">Where</th>
            </tr>
          </thead>
          <tbody>
            {[...list].reverse().map((one, at) => (
              <tr key={at}>
                <td title={clock(one.time)}>{clockShort(one.time)}</td>
                <td class="figure">{number(one.step)}</td>
                <td class="figure">{seconds(one.stall_seconds)}</td>
                <td class="figure">{seconds(one.seconds)}</td>
                <td class="figure">{bytes(one.bytes)}</td>
                <td class="mono break">{one.path}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </details>
  );
}

function Events({ list }: { list: RunEvent[] }) {
  const [level, setLevel] = useState("all");
  const shown = list.filter(
    (event) => level === "all" || event.level === level || (level === "warning" && event.level === "error"),
  );
  return (
    <details class="card pad gap">
      <summary>
        <h2 class="inline">All events</h2> <span class="muted">{list.length}</span>
      </summary>
      <div class="toolbar gap">
        <label>
          Level
          <select value={level} onChange={(event) => setLevel(event.currentTarget.value)}>
            <option value="all">all</option>
            <option value="warning">warnings and errors</option>
            <option value="error">errors</option>
          </select>
        </label>
      </div>
      <Scroll class="" label="Events">
        <table class="rows">
          <thead>
            <tr>
              <th scope="col">Time</th>
              <th scope="col">Level</th>
              <th scope="col">Kind</th>
              <th scope="col" class="figure">
                Step
              </th>
              <th scope="col">Message</th>
            </tr>
          </thead>
          <tbody>
            {[...shown].reverse().map((event, at) => (
              <tr key={at}>
                <td title={clock(event.time)}>{clockShort(event.time)}</td>
                <td class={`level-${event.level}`}>
                  {kLevelSigns[event.level] ?? "·"} {event.level}
                </td>
                <td>{event.kind}</td>
                <td class="figure">{event.step >= 0 ? number(event.step) : ""}</td>
                <td class="break">
                  {event.rank >= 0 ? `rank ${event.rank}: ` : ""}
                  {event.message}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </details>
  );
}
