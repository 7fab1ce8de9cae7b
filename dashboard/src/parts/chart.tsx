// A thin wrapper of uPlot: curves of buckets (mean, and the band from their least to their greatest value), the predicted
// range behind them, zoom by drag, double-click back, cursors in step with the other charts of the page.
import { useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import type { Band, Maybe } from "../lib/api";
import { bytes, number } from "../lib/format";
import { colour, useColours } from "../lib/theme";

export interface Curve {
  label: string;
  colour: string; // a custom property: "--c1"
  x: number[];
  mean: (number | null)[];
  min?: (number | null)[];
  max?: (number | null)[];
  dash?: number[]; // colour is never the only sign
  points?: boolean; // marks instead of a line
}

export interface ChartProps {
  title: string;
  curves: Curve[];
  format?: (value: Maybe) => string;
  band?: Band | null;
  sync?: string;
  zoomed?: boolean;
  height?: number;
  xTitle?: string;
  formatX?: (value: number) => string;
  onZoom?: (from: number, to: number) => void;
  onReset?: () => void;
  note?: string;
  loading?: boolean;
}

const kBinarySteps = Array.from({ length: 50 }, (_, power) => 2 ** power);

const isKnown = (value: Maybe): value is number => typeof value === "number" && Number.isFinite(value);

// [x, then per curve: mean, min, max]; curves of different x are joined.
function columns(curves: Curve[]): uPlot.AlignedData {
  const tables = curves.map((curve) => [curve.x, curve.mean, curve.min ?? curve.mean, curve.max ?? curve.mean]);
  if (tables.length === 0) return [[], []] as unknown as uPlot.AlignedData;
  const oneX = tables.every((table) => table[0] === tables[0][0]);
  if (oneX) return [tables[0][0], ...tables.flatMap((table) => table.slice(1))] as uPlot.AlignedData;
  return uPlot.join(tables as uPlot.AlignedData[]);
}

function extent(self: uPlot, band: Band | null | undefined): [number, number] {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  const take = (value: Maybe) => {
    if (!isKnown(value)) return;
    low = Math.min(low, value);
    high = Math.max(high, value);
  };
  // All of the data is in view: who zooms asks for that part alone.
  for (let column = 1; column < self.data.length; column++) {
    for (const value of self.data[column]) take(value);
  }
  take(band?.low ?? band?.expected);
  take(band?.high ?? band?.expected);
  if (low > high) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

function drawBand(self: uPlot, band: Band): void {
  const { ctx, bbox } = self;
  const low = band.low ?? band.expected;
  const high = band.high ?? band.expected;
  if (!isKnown(low) || !isKnown(high)) return;
  const top = self.valToPos(high, "y", true);
  const bottom = self.valToPos(low, "y", true);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.fillStyle = colour("--predicted-fill");
  ctx.fillRect(bbox.left, top, bbox.width, Math.max(bottom - top, 1));
  if (isKnown(band.expected)) {
    const y = Math.round(self.valToPos(band.expected, "y", true)) + 0.5;
    ctx.strokeStyle = colour("--predicted");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }
  ctx.restore();
}

function seriesOf(curve: Curve): uPlot.Series[] {
  const stroke = () => colour(curve.colour);
  const few = curve.x.length < 3;
  const edge: uPlot.Series = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
  return [
    {
      label: curve.label,
      stroke,
      width: curve.points ? 0 : 1.6,
      dash: curve.dash,
      spanGaps: true,
      points: { show: curve.points || few, size: 6, fill: stroke, stroke },
      paths: curve.points ? () => null : undefined,
    },
    edge,
    edge,
  ];
}

function optionsOf(props: { current: ChartProps }, width: number, moved: (self: uPlot) => void): uPlot.Options {
  const { curves, sync, height = 190 } = props.current;
  const axis: uPlot.Axis = {
    stroke: () => colour("--muted"),
    grid: { stroke: () => colour("--grid"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  return {
    width,
    height,
    legend: { show: false },
    padding: [8, 16, 0, 0],
    cursor: {
      sync: sync ? { key: sync, setSeries: false } : undefined,
      drag: { x: true, y: false, setScale: false },
      points: { size: 7 },
      bind: {
        dblclick: () => () => {
          props.current.onReset?.();
          return null;
        },
      },
    },
    scales: { x: { time: false }, y: { range: (self) => extent(self, props.current.band) } },
    axes: [
      {
        ...axis,
        size: 26,
        gap: 4,
        values: (_, splits) => splits.map((value) => props.current.formatX?.(value) ?? number(value)),
      },
      {
        ...axis,
        gap: 4,
        incrs: props.current.format === bytes ? kBinarySteps : undefined,
        size: (_self, values) => Math.max(36, ...(values ?? []).map((text) => (text?.length ?? 0) * 6.4 + 10)),
        values: (_, splits) => splits.map((value) => (props.current.format ?? number)(value)),
      },
    ],
    series: [{}, ...curves.flatMap(seriesOf)],
    bands: curves.map((curve, at) => ({
      series: [3 * at + 3, 3 * at + 2] as uPlot.Band.Bounds,
      fill: () => `${colour(curve.colour)}33`,
    })),
    hooks: {
      drawClear: [(self) => props.current.band && drawBand(self, props.current.band)],
      setCursor: [moved],
      setSelect: [
        (self) => {
          if (self.select.width < 4) return;
          const from = self.posToVal(self.select.left, "x");
          const to = self.posToVal(self.select.left + self.select.width, "x");
          self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          props.current.onZoom?.(Math.floor(from), Math.ceil(to));
        },
      ],
    },
  };
}

function lastKnown(values: (number | null)[]): Maybe {
  for (let at = values.length - 1; at >= 0; at--) if (isKnown(values[at])) return values[at];
  return null;
}

// What a reader who cannot see the picture is told.
function describe(props: ChartProps): string {
  const show = props.format ?? number;
  const parts = props.curves.map((curve) => {
    if (curve.x.length === 0) return `${curve.label}: no points`;
    return `${curve.label}: ${props.xTitle ?? "step"} ${number(curve.x[0])} to ${number(curve.x[curve.x.length - 1])}, last ${show(lastKnown(curve.mean))}`;
  });
  if (props.band?.expected != null) parts.push(`predicted ${bandText(props.band, show)}`);
  return `${props.title}. ${parts.join(". ")}`;
}

export function bandText(band: Band, show: (value: Maybe) => string): string {
  const middle = show(band.expected);
  return isKnown(band.low) && isKnown(band.high) ? `${middle} (${show(band.low)} to ${show(band.high)})` : middle;
}

export function Chart(given: ChartProps) {
  const props = useRef(given);
  props.current = given;
  const host = useRef<HTMLDivElement>(null);
  const value = useRef<HTMLSpanElement>(null);
  const plot = useRef<uPlot | null>(null);
  const show = given.format ?? number;
  const shape = given.curves.map((c) => c.label + c.colour + (c.dash ?? "") + (c.x.length < 3)).join("|");
  const single = given.curves.length === 1;

  const moved = (self: uPlot) => {
    if (!value.current) return;
    const at = self.cursor.idx;
    const { curves, format = number, xTitle = "step", formatX = number } = props.current;
    if (at == null) {
      value.current.textContent = curves.length === 1 ? format(lastKnown(curves[0].mean)) : "";
      return;
    }
    const parts = curves.map((curve, index) => {
      const column = self.data[3 * index + 1];
      let near = at;
      while (near > 0 && column[near] == null) near--;
      return `${curves.length > 1 ? `${curve.label} ` : ""}${format(column[near])}`;
    });
    value.current.textContent = `${xTitle} ${formatX(self.data[0][at])}: ${parts.join("  ")}`;
  };

  useLayoutEffect(() => {
    const place = host.current;
    if (!place) return;
    const made = new uPlot(optionsOf(props, place.clientWidth || 300, moved), columns(props.current.curves), place);
    plot.current = made;
    const watcher = new ResizeObserver(() => {
      const width = place.clientWidth;
      if (width > 0 && width !== made.width) made.setSize({ width, height: made.height });
    });
    watcher.observe(place);
    return () => {
      watcher.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, given.height]);

  useLayoutEffect(() => {
    plot.current?.setData(columns(given.curves));
    if (value.current && plot.current?.cursor.idx == null) {
      value.current.textContent = single ? show(lastKnown(given.curves[0].mean)) : "";
    }
  }, [given.curves, given.band]);

  useColours(() => plot.current?.redraw(false));

  return (
    <figure class="chart card">
      <figcaption>
        <span class="chart-title">{given.title}</span>
        <span class="chart-value" ref={value} aria-hidden="true" />
        {given.zoomed && (
          <button type="button" class="small" onClick={() => given.onReset?.()}>
            Reset zoom
          </button>
        )}
      </figcaption>
      <div class="chart-plot" ref={host} role="img" aria-label={describe(given)} />
      <div class="chart-foot">
        {!single &&
          given.curves.map((curve) => (
            <span key={curve.label} class="key">
              <Swatch curve={curve} /> {curve.label}
            </span>
          ))}
        {given.band?.expected != null && (
          <span class="key">
            <span class="swatch predicted" /> predicted {bandText(given.band, show)}
          </span>
        )}
        {given.note && <span>{given.note}</span>}
      </div>
      {given.loading && <div class="progress" />}
    </figure>
  );
}

function Swatch({ curve }: { curve: Curve }) {
  return (
    <svg width="22" height="8" aria-hidden="true" class="line-swatch">
      {curve.points ? (
        <circle cx="11" cy="4" r="3" style={{ fill: `var(${curve.colour})` }} />
      ) : (
        <line
          x1="0"
          y1="4"
          x2="22"
          y2="4"
          style={{ stroke: `var(${curve.colour})` }}
          stroke-width="2"
          stroke-dasharray={curve.dash?.join(" ")}
        />
      )}
    </svg>
  );
}
