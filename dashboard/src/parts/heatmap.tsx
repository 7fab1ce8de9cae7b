// Ranks x steps on a canvas. Arrow keys walk over the cells, Enter or a click opens one.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Heatmap } from "../lib/api";
import { number, seconds } from "../lib/format";
import { colour, useColours } from "../lib/theme";

interface Props {
  data: Heatmap;
  marked: Map<number, number>; // stragglers: rank -> by how much
  title: string;
  open: (step: number) => void;
}

const kGutter = 78;
const kAxis = 20;

function quantile(sorted: number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

// The range of colours: the 2nd to the 98th percentile, so that one slow step does not bleach the rest.
function rangeOf(data: Heatmap): { low: number; high: number } {
  const all = data.values.flat().filter((value): value is number => typeof value === "number");
  all.sort((a, b) => a - b);
  if (all.length === 0) return { low: 0, high: 1 };
  const low = quantile(all, 0.02);
  const high = quantile(all, 0.98);
  // Differences below 2% are noise: they shall not look like a pattern.
  return high - low < low * 0.02 ? { low: low * 0.98, high: low * 1.02 } : { low, high };
}

function parseHex(text: string): [number, number, number] {
  const value = Number.parseInt(text.slice(1, 7), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

function palette(): string[] {
  const stops = ["--heat-low", "--heat-mid", "--heat-high"].map((name) => parseHex(colour(name)));
  const steps = 64;
  return Array.from({ length: steps + 1 }, (_, at) => {
    const place = (at / steps) * 2;
    const [from, to] = place < 1 ? [stops[0], stops[1]] : [stops[1], stops[2]];
    const mix = place < 1 ? place : place - 1;
    return `rgb(${from.map((part, index) => Math.round(part + (to[index] - part) * mix)).join(" ")})`;
  });
}

export function HeatmapView({ data, marked, title, open }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [cell, setCell] = useState<{ row: number; column: number } | null>(null);
  const [width, setWidth] = useState(0);
  const rows = data.ranks.length;
  const columns = data.steps.length;
  const rowHeight = Math.max(6, Math.min(34, Math.floor(420 / Math.max(rows, 1))));
  const height = rows * rowHeight + kAxis;
  const range = rangeOf(data);

  const draw = () => {
    const element = canvas.current;
    const pen = element?.getContext("2d");
    if (!element || !pen || width === 0) return;
    const scale = devicePixelRatio || 1;
    element.width = width * scale;
    element.height = height * scale;
    pen.scale(scale, scale);
    const colours = palette();
    const cellWidth = (width - kGutter) / Math.max(columns, 1);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (let row = 0; row < rows; row++) {
      const slow = marked.has(data.ranks[row]);
      if (rowHeight >= 11 || row % Math.ceil(12 / rowHeight) === 0 || slow) {
        pen.fillStyle = colour(slow ? "--bad" : "--muted");
        pen.fillText(`${slow ? "▲ " : ""}rank ${data.ranks[row]}`, 0, row * rowHeight + rowHeight / 2);
      }
      for (let column = 0; column < columns; column++) {
        const value = data.values[row]?.[column];
        if (typeof value !== "number") continue;
        const share = (value - range.low) / (range.high - range.low || 1);
        pen.fillStyle = colours[Math.round(Math.max(0, Math.min(1, share)) * (colours.length - 1))];
        const left = kGutter + column * cellWidth;
        pen.fillRect(
          left,
          row * rowHeight,
          Math.max(cellWidth - (cellWidth > 6 ? 1 : 0), 0.7),
          rowHeight - (rowHeight > 8 ? 1 : 0),
        );
      }
    }
    pen.fillStyle = colour("--muted");
    pen.textBaseline = "bottom";
    pen.fillText(`step ${number(data.steps[0])}`, kGutter, height);
    const last = number(data.steps[columns - 1]);
    pen.fillText(last, width - pen.measureText(last).width, height);
    if (cell) {
      pen.strokeStyle = colour("--text");
      pen.lineWidth = 2;
      pen.strokeRect(
        kGutter + cell.column * cellWidth,
        cell.row * rowHeight + 1,
        Math.max(cellWidth, 3),
        rowHeight - 2,
      );
    }
  };

  useEffect(draw, [data, width, cell, marked]);
  useColours(draw);
  useEffect(() => {
    const element = canvas.current?.parentElement;
    if (!element) return;
    const watcher = new ResizeObserver(() => setWidth(element.clientWidth));
    watcher.observe(element);
    return () => watcher.disconnect();
  }, []);

  const cellAt = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left - kGutter) / (width - kGutter)) * columns);
    const row = Math.floor((event.clientY - box.top) / rowHeight);
    return column >= 0 && column < columns && row >= 0 && row < rows ? { row, column } : null;
  };
  const walk = (event: KeyboardEvent) => {
    const by: Record<string, [number, number]> = {
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
    };
    const now = cell ?? { row: 0, column: 0 };
    if (event.key === "Enter" && cell) open(data.steps[cell.column]);
    const step = by[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    setCell({
      row: Math.max(0, Math.min(rows - 1, now.row + step[0])),
      column: Math.max(0, Math.min(columns - 1, now.column + step[1])),
    });
  };
  const value = cell ? data.values[cell.row]?.[cell.column] : null;
  const said = cell
    ? `Rank ${data.ranks[cell.row]}, step ${number(data.steps[cell.column])}: ${seconds(value)}`
    : `${number(rows)} ranks, steps ${number(data.steps[0])} to ${number(data.steps[columns - 1])}`;
  return (
    <div class="card pad">
      <div class="heat-head">
        <h2>{title}</h2>
        <output class="heat-cell">{said}</output>
      </div>
      <div class="heat-plot">
        <canvas
          ref={canvas}
          style={{ width: "100%", height: `${height}px` }}
          tabIndex={0}
          role="img"
          aria-label={`${title}, ranks by steps. Arrow keys choose a cell, Enter opens its step. The table below has the medians.`}
          onMouseMove={(event) => setCell(cellAt(event))}
          onMouseLeave={() => setCell(null)}
          onClick={(event) => {
            const hit = cellAt(event);
            if (hit) open(data.steps[hit.column]);
          }}
          onKeyDown={walk}
        />
      </div>
      <div class="heat-legend" aria-hidden="true">
        {seconds(range.low)} <span class="heat-scale" /> {seconds(range.high)}
        {marked.size > 0 && <span class="bad">▲ straggler</span>}
      </div>
    </div>
  );
}
