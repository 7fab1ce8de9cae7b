// Small parts that every page uses.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Json } from "../lib/api";
import type { LiveState } from "../lib/live";

const kSigns: Record<string, string> = {
  running: "●",
  done: "✓",
  failed: "✕",
  interrupted: "‖",
  lost: "?",
  simulated: "∿",
};

// Sign and word: colour is never the only sign.
export function Status({ status }: { status: string }) {
  return (
    <span class={`status status-${status.replace(/[^a-z]/g, "")}`}>
      <span aria-hidden="true" class="status-sign">
        {kSigns[status] ?? "·"}
      </span>
      {status}
    </span>
  );
}

const kLiveWords: Record<LiveState, string> = {
  connecting: "connecting",
  live: "live",
  stale: "stale",
  ended: "ended",
};

export function LivePill({ state }: { state: LiveState }) {
  const meaning = {
    connecting: "Connecting to the server",
    live: "New points appear by themselves",
    stale: "The connection is lost; trying again",
    ended: "The run has ended",
  }[state];
  return (
    <output class={`pill live-${state}`} title={meaning}>
      <span class="live-dot" aria-hidden="true" />
      {kLiveWords[state]}
    </output>
  );
}

export function Tile(props: { label: string; value: string; note?: string; tone?: string }) {
  return (
    <div class="tile">
      <dt>{props.label}</dt>
      <dd>
        <span class="tile-value">{props.value}</span>
        {props.note && <span class={`tile-note ${props.tone ?? ""}`}>{props.note}</span>}
      </dd>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

// What to show while, and where, an answer is not there.
export function Waiting(props: { error: string | null; loading: boolean; reload: () => void; what: string }) {
  if (props.error) {
    return (
      <Empty title={`${props.what}: ${props.error}`}>
        <button type="button" onClick={props.reload}>
          Try again
        </button>
      </Empty>
    );
  }
  return (
    <output class="skeletons" aria-label={`Loading ${props.what}`}>
      <span class="skeleton" />
      <span class="skeleton" />
    </output>
  );
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      setSaid("Select and copy by hand"); // no clipboard outside localhost and https
    }
    setTimeout(() => setSaid(""), 2000);
  };
  return (
    <button type="button" class="small" onClick={copy} aria-live="polite">
      {said || label}
    </button>
  );
}

export function Code({ text, label }: { text: string; label: string }) {
  return (
    <div class="code">
      <CopyButton text={text} />
      <Scroll label={label}>
        <pre>{text}</pre>
      </Scroll>
    </div>
  );
}

// A table that is wider than the screen scrolls by itself, also by keyboard.
export function Scroll(props: { label: string; class?: string; children: ComponentChildren }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
    <section class={`table-wrap ${props.class ?? ""}`} aria-label={props.label} tabIndex={0}>
      {props.children}
    </section>
  );
}

// Any JSON value as a two-column table; nested objects are indented rows.
export function Facts({ value }: { value: Json }) {
  const rows: { key: string; depth: number; text: string }[] = [];
  const walk = (key: string, part: Json, depth: number) => {
    if (part !== null && typeof part === "object" && !Array.isArray(part)) {
      if (key) rows.push({ key, depth, text: "" });
      for (const [name, inner] of Object.entries(part)) walk(name, inner, key ? depth + 1 : depth);
    } else {
      rows.push({ key, depth, text: Array.isArray(part) ? part.map(plain).join(", ") : plain(part) });
    }
  };
  walk("", value, 0);
  return (
    <table class="facts">
      <tbody>
        {rows.map((row, at) => (
          <tr key={at}>
            <th scope="row" style={{ paddingLeft: `${8 + row.depth * 16}px` }}>
              {row.key}
            </th>
            <td>{row.text}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function plain(value: Json): string {
  return value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
}
