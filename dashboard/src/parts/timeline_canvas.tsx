// Spans on a canvas: wheel or + and - zoom, drag or arrows pan, the pointer shows what a span was.
import { useEffect, useRef, useState } from "preact/hooks";
import { bytes, seconds, words } from "../lib/format";
import { useKeys } from "../lib/keys";
import { type Box, keyOf, type Layout } from "../lib/spans";
import { colour, useColours } from "../lib/theme";

const kGutter = 92;
const kAxis = 22;
const kBox = 18;
const kGap = 5;
const kRankGap = 8;

export const kKindColours: Record<string, string> = {
  forward: "--c1",
  backward: "--c3",
  recompute: "--c6",
  weight_gradient: "--c6",
  collective: "--c2",
  wait: "--bad",
  load: "--c4",
  optimizer: "--c5",
  publish: "--c2",
  checkpoint: "--warn",
  snapshot: "--warn",
  evaluation: "--c4",
  host: "--predicted",
};
const kLetters: Record<string, string> = { forward: "F", backward: "B", recompute: "R", weight_gradient: "W" };

interface View {
  from: number;
  to: number; // microseconds
}

function topsOf(layout: Layout): { tops: number[]; height: number } {
  const tops: number[] = [];
  let y = kAxis;
  layout.rows.forEach((row, at) => {
    if (at > 0 && layout.rows[at - 1].rank !== row.rank) y += kRankGap;
    tops.push(y);
    y += row.depth * kBox + kGap;
  });
  return { tops, height: y + 4 };
}

function labelOf(box: Box): string {
  const letter = kLetters[box.kind];
  if (letter) return `${letter}${box.micro >= 0 ? box.micro : ""}`;
  return box.name || box.kind;
}

// Ticks at 1, 2 or 5 times a power of ten.
function tickStep(span: number, width: number): number {
  const wanted = (span / Math.max(width, 1)) * 110;
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= wanted) ?? power * 10;
}

interface Pen {
  pen: CanvasRenderingContext2D;
  width: number;
  height: number;
  x: (time: number) => number;
  view: View;
}

function drawAxis({ pen, width, height, x, view }: Pen): void {
  const step = tickStep(view.to - view.from, width - kGutter);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "top";
  for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step) {
    const at = Math.round(x(time)) + 0.5;
    pen.strokeStyle = colour("--grid");
    pen.beginPath();
    pen.moveTo(at, kAxis - 4);
    pen.lineTo(at, height);
    pen.stroke();
    pen.fillStyle = colour("--muted");
    const label = seconds(time / 1e6);
    const fits = at + 3 + pen.measureText(label).width <= width;
    pen.textAlign = fits ? "left" : "right";
    pen.fillText(label, fits ? at + 3 : at - 3, 3);
  }
  pen.textAlign = "left";
}

function drawBoxes({ pen, width, x, view }: Pen, layout: Layout, tops: number[], hovered: Box | null): void {
  const fills = new Map<string, string>();
  const fillOf = (kind: string) => {
    const name = kKindColours[kind] ?? "--predicted";
    if (!fills.has(name)) fills.set(name, colour(name));
    return fills.get(name)!;
  };
  const together = hovered && keyOf(hovered);
  const paper = colour("--surface");
  const ink = colour("--text");
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  for (const box of layout.boxes) {
    if (box.end < view.from || box.begin > view.to) continue;
    const left = Math.max(x(box.begin), kGutter - 2);
    const right = Math.min(x(box.end), width + 2);
    const top = tops[box.row] + box.depth * kBox;
    const size = Math.max(right - left, 0.6);
    pen.globalAlpha = together && keyOf(box) !== together ? 0.35 : box.kind === "wait" ? 0.45 : 0.88;
    pen.fillStyle = fillOf(box.kind);
    pen.fillRect(left, top, Math.max(size - (size > 3 ? 0.7 : 0), 0.6), kBox - 2);
    if (box.kind === "wait" && size > 6) hatch(pen, left, top, size, paper);
    pen.globalAlpha = 1;
    if (box === hovered) {
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      pen.strokeRect(left, top, size, kBox - 2);
      pen.lineWidth = 1;
    }
    const label = labelOf(box);
    if (size > 16 && pen.measureText(label).width < size - 5) {
      pen.fillStyle = box.kind === "wait" ? ink : paper;
      pen.fillText(label, left + 3, top + kBox / 2 - 0.5);
    }
  }
}

// Waiting is told apart by its pattern too.
function hatch(pen: CanvasRenderingContext2D, left: number, top: number, width: number, paper: string): void {
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, kBox - 2);
  pen.clip();
  pen.strokeStyle = paper;
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (let at = left - kBox; at < left + width; at += 6) {
    pen.moveTo(at, top + kBox);
    pen.lineTo(at + kBox, top);
  }
  pen.stroke();
  pen.restore();
}

const kMostLinks = 400;

function drawLinks({ pen, x, view }: Pen, layout: Layout, tops: number[]): void {
  const seen = layout.links.filter((link) => link.from.begin <= view.to && link.to.end >= view.from);
  if (seen.length > kMostLinks) return; // too many to tell apart: zoom in
  pen.strokeStyle = colour("--text");
  pen.globalAlpha = 0.55;
  for (const { from, to } of seen) {
    const [x1, y1] = [x(from.begin), tops[from.row] + (from.depth + 0.5) * kBox];
    const [x2, y2] = [x(to.end), tops[to.row] + (to.depth + 0.5) * kBox];
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.bezierCurveTo((x1 + x2) / 2, y1, (x1 + x2) / 2, y2, x2, y2);
    pen.stroke();
    pen.beginPath();
    pen.arc(x2, y2, 2, 0, 7);
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

function drawNames({ pen, height }: Pen, layout: Layout, tops: number[]): void {
  pen.clearRect(0, kAxis, kGutter - 2, height);
  pen.textBaseline = "middle";
  pen.font = "11px system-ui, sans-serif";
  layout.rows.forEach((row, at) => {
    const middle = tops[at] + kBox / 2;
    if (at === 0 || layout.rows[at - 1].rank !== row.rank) {
      pen.fillStyle = colour("--text");
      pen.fillText(`rank ${row.rank}`, 0, middle);
    }
    pen.fillStyle = colour("--muted");
    pen.fillText(row.lane, 52, middle);
  });
}

export function TimelineCanvas({ layout }: { layout: Layout }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [view, setView] = useState<View>({ from: 0, to: layout.length });
  const [hovered, setHovered] = useState<Box | null>(null);
  const [tip, setTip] = useState({ x: 0, y: 0 });
  const drag = useRef<{ x: number; view: View } | null>(null);
  const { tops, height } = topsOf(layout);
  const scale = (width - kGutter) / (view.to - view.from);
  useEffect(() => setView({ from: -layout.length * 0.01, to: layout.length * 1.01 }), [layout]);

  const draw = () => {
    const element = canvas.current;
    const pen = element?.getContext("2d");
    if (!element || !pen || width === 0) return;
    const ratio = devicePixelRatio || 1;
    element.width = width * ratio;
    element.height = height * ratio;
    pen.scale(ratio, ratio);
    const place: Pen = { pen, width, height, view, x: (time) => kGutter + (time - view.from) * scale };
    drawAxis(place);
    drawBoxes(place, layout, tops, hovered);
    drawLinks(place, layout, tops);
    drawNames(place, layout, tops);
  };
  useEffect(draw, [layout, width, view, hovered]);
  useColours(draw);
  useEffect(() => {
    const element = canvas.current?.parentElement;
    if (!element) return;
    const watcher = new ResizeObserver(() => setWidth(element.clientWidth));
    watcher.observe(element);
    return () => watcher.disconnect();
  }, []);

  const zoom = (factor: number, at = (view.from + view.to) / 2) =>
    setView((old) => {
      const span = Math.min(layout.length * 1.5, Math.max(5, (old.to - old.from) * factor));
      const share = (at - old.from) / (old.to - old.from);
      return { from: at - span * share, to: at + span * (1 - share) };
    });
  const pan = (share: number) =>
    setView((old) => ({ from: old.from + share * (old.to - old.from), to: old.to + share * (old.to - old.from) }));
  const reset = () => setView({ from: -layout.length * 0.01, to: layout.length * 1.01 });
  useKeys({ "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6), "0": reset });

  // A wheel listener that may keep the page from scrolling cannot be passive.
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const wheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) {
        if (document.activeElement !== element) return; // the page scrolls until the timeline is chosen
      }
      event.preventDefault();
      const box = element.getBoundingClientRect();
      const at = view.from + (event.clientX - box.left - kGutter) / scale;
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / Math.max(width, 1));
      else zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });

  const boxAt = (event: PointerEvent): Box | null => {
    const place = canvas.current!.getBoundingClientRect();
    const time = view.from + (event.clientX - place.left - kGutter) / scale;
    const y = event.clientY - place.top;
    const slack = 2 / scale;
    let best: Box | null = null;
    for (const box of layout.boxes) {
      const top = tops[box.row] + box.depth * kBox;
      if (y < top || y > top + kBox || time < box.begin - slack || time > box.end + slack) continue;
      if (!best || box.end - box.begin < best.end - best.begin) best = box;
    }
    return best;
  };
  const move = (event: PointerEvent) => {
    const place = canvas.current!.getBoundingClientRect();
    if (drag.current && event.buttons) {
      const by = (event.clientX - drag.current.x) / scale;
      setView({ from: drag.current.view.from - by, to: drag.current.view.to - by });
      return;
    }
    setTip({ x: event.clientX - place.left, y: event.clientY - place.top });
    setHovered(boxAt(event));
  };
  const keys = (event: KeyboardEvent) => {
    const by = { ArrowLeft: -0.15, ArrowRight: 0.15 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    pan(by);
  };

  return (
    <div class="card pad">
      <div class="toolbar tl-tools">
        <button type="button" class="small" onClick={() => zoom(0.6)} aria-label="Zoom in">
          +
        </button>
        <button type="button" class="small" onClick={() => zoom(1.6)} aria-label="Zoom out">
          −
        </button>
        <button type="button" class="small" onClick={() => pan(-0.3)} aria-label="Earlier">
          ←
        </button>
        <button type="button" class="small" onClick={() => pan(0.3)} aria-label="Later">
          →
        </button>
        <button type="button" class="small" onClick={reset}>
          Whole step
        </button>
        <span class="muted">Click it, then the wheel zooms; drag to pan.</span>
      </div>
      <div class="tl-plot">
        <canvas
          ref={canvas}
          style={{ width: "100%", height: `${height}px` }}
          tabIndex={0}
          role="img"
          aria-label="Spans of every rank over the time of the step. Arrow keys pan, plus and minus zoom. The table below has the totals."
          onPointerDown={(event) => {
            drag.current = { x: event.clientX, view };
            canvas.current?.setPointerCapture(event.pointerId);
          }}
          onPointerUp={() => {
            drag.current = null;
          }}
          onPointerMove={move}
          onPointerLeave={() => setHovered(null)}
          onKeyDown={keys}
        />
        {hovered && <Tip box={hovered} layout={layout} x={tip.x} y={tip.y} width={width} />}
      </div>
    </div>
  );
}

function Tip(props: { box: Box; layout: Layout; x: number; y: number; width: number }) {
  const { box, layout, x, y, width } = props;
  const members = keyOf(box) ? (layout.members.get(keyOf(box)) ?? []).filter((one) => one.kind === "collective") : [];
  const late = members.length > 1 ? members.reduce((last, one) => (one.begin > last.begin ? one : last)) : null;
  const waited = late && box.kind === "collective" ? late.begin - box.begin : 0;
  const right = x > width / 2;
  return (
    <div
      class="tip"
      style={{
        top: `${y + 14}px`,
        left: right ? "auto" : `${x + 12}px`,
        right: right ? `${width - x + 12}px` : "auto",
      }}
    >
      <strong>
        {words(box.kind)} {box.name}
      </strong>
      <span>
        rank {box.rank}, {box.lane}: {seconds((box.end - box.begin) / 1e6)} from {seconds(box.begin / 1e6)}
      </span>
      {box.micro >= 0 && <span>micro-batch {box.micro}</span>}
      {box.stage >= 0 && <span>stage {box.stage}</span>}
      {box.bytes > 0 && <span>{bytes(box.bytes)}</span>}
      {box.group && (
        <span>
          group {box.group}, operation {box.sequence}
        </span>
      )}
      {box.peer >= 0 && <span>with rank {box.peer}</span>}
      {waited > 0 && late && (
        <span class="bad">
          waited {seconds(waited / 1e6)} for rank {late.rank}
        </span>
      )}
    </div>
  );
}
