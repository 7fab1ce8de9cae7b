// One horizontal time line: what the run was doing, and marks of what happened. Plain SVG: few things, all of them text
// for those who cannot see it.
import { useEffect, useRef, useState } from "preact/hooks";
import { clockShort, seconds } from "../lib/format";

export interface Mark {
  lane: string;
  time: number;
  until?: number;
  level: string;
  text: string;
}

const kLanes = ["incidents", "alerts", "checkpoints"];
const kLaneHeight = 26;
const kGutter = 86;

export function EventLine(props: {
  begin: number;
  end: number;
  marks: Mark[];
  periods: { period: string; begin: number; end: number }[]; // seconds after `begin`
}) {
  const host = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(800);
  useEffect(() => {
    const element = host.current;
    if (!element) return;
    const watcher = new ResizeObserver(() => setWidth(element.clientWidth));
    watcher.observe(element);
    return () => watcher.disconnect();
  }, []);
  const { begin, end, marks, periods } = props;
  const x = (time: number) => kGutter + ((time - begin) / (end - begin)) * (width - kGutter - 10);
  const lanes = kLanes.filter((lane) => marks.some((mark) => mark.lane === lane));
  const height = (lanes.length + 1) * kLaneHeight + 22;
  const spoken = `From ${clockShort(begin)} to ${clockShort(end)}, ${seconds(end - begin)}. ${lanes
    .map((lane) => `${marks.filter((mark) => mark.lane === lane).length} ${lane}`)
    .join(", ")}`;
  return (
    <div class="card pad">
      <div class="event-line" ref={host}>
        <svg width={width} height={height} role="img" aria-label={spoken}>
          <text x="0" y={17} class="el-label">
            the run
          </text>
          {periods.map((span, at) => (
            <rect
              key={at}
              class={`el-period el-${span.period}`}
              x={x(begin + span.begin)}
              y={6}
              width={Math.max(1, x(begin + span.end) - x(begin + span.begin))}
              height={14}
            >
              <title>{`${span.period}: ${seconds(span.end - span.begin)}`}</title>
            </rect>
          ))}
          {lanes.map((lane, at) => {
            const y = (at + 1) * kLaneHeight + 13;
            return (
              <g key={lane}>
                <text x="0" y={y + 4} class="el-label">
                  {lane}
                </text>
                <line x1={kGutter} x2={width - 10} y1={y} y2={y} class="el-rule" />
                {marks
                  .filter((mark) => mark.lane === lane)
                  .map((mark, index) => (
                    <MarkShape
                      key={index}
                      mark={mark}
                      x={x(mark.time)}
                      to={mark.until ? x(mark.until) : undefined}
                      y={y}
                    />
                  ))}
              </g>
            );
          })}
          <text x={kGutter} y={height - 4} class="el-label">
            {clockShort(begin)}
          </text>
          <text x={width - 10} y={height - 4} text-anchor="end" class="el-label">
            {clockShort(end)}
          </text>
        </svg>
      </div>
      <div class="wf-legend" aria-hidden="true">
        {[...new Set(periods.map((span) => span.period))].map((period) => (
          <span class="key" key={period}>
            <svg width="14" height="10" aria-hidden="true">
              <rect width="14" height="10" class={`el-period el-${period}`} />
            </svg>{" "}
            {period}
          </span>
        ))}
        {lanes.includes("incidents") && <span class="key">✕ error ▲ warning ● note</span>}
      </div>
    </div>
  );
}

function MarkShape({ mark, x, to, y }: { mark: Mark; x: number; to?: number; y: number }) {
  const shape =
    mark.lane === "checkpoints" ? (
      <rect x={x - 2} y={y - 6} width={4} height={12} rx={1} />
    ) : mark.level === "error" ? (
      <path d={`M${x - 5} ${y - 5}l10 10m0 -10l-10 10`} class="el-cross" />
    ) : mark.level === "warning" ? (
      <path d={`M${x} ${y - 6}l6 11h-12z`} />
    ) : (
      <circle cx={x} cy={y} r={4.5} />
    );
  return (
    <g class={`el-mark level-${mark.level}`}>
      {to !== undefined && to > x && <line x1={x} x2={to} y1={y} y2={y} class="el-span" />}
      {shape}
      <title>{`${clockShort(mark.time)} ${mark.text}`}</title>
    </g>
  );
}
