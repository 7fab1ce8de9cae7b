// The HTTP API of `lockstep serve` (docs/reference/http-api.md): its shapes, and how to ask.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

export type Maybe = number | null | undefined;
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface RunRow {
  id: string;
  name: string;
  status: string;
  started_at: number;
  ended_at?: Maybe;
  world: number;
  backend?: string;
  host?: string;
  tags?: string[];
  model?: string | null;
  layout?: string | null;
  steps?: Maybe;
  loss?: Maybe;
  unit?: string;
  tokens_per_second?: Maybe;
  samples_per_second?: Maybe;
  goodput?: Maybe;
  predicted_per_second?: Maybe;
  mfu?: Maybe;
  efficiency?: Maybe;
  alerts?: Maybe;
}

export interface Band {
  low?: Maybe;
  expected?: Maybe;
  high?: Maybe;
}

export interface RunDetail {
  run: RunRow & { job_yaml?: string; versions?: Json; exit_reason?: string; summary?: { [key: string]: Json } };
  metrics: string[];
  ranks: number[];
  unit: string;
  predicted: Record<string, Band | null>;
  plan: { [key: string]: Json } | null;
  span_steps: number[];
}

export interface Series {
  metric: string;
  rank: number;
  steps: number[];
  times: number[];
  mean: (number | null)[];
  min: (number | null)[];
  max: (number | null)[];
  last_step: Maybe;
}

export interface Heatmap {
  metric: string;
  ranks: number[];
  steps: number[];
  values: (number | null)[][];
}

// kind, lane, begin_us, us, name, group, bytes, sequence, peer, micro, stage; texts are numbers into `names`, -1: none.
// What is not known is left off at the end.
export type SpanRow = [string, string, number, number, ...number[]];
export interface TimelineRank {
  rank: number;
  time: number;
  names: string[];
  spans: SpanRow[];
}
export interface Timeline {
  step: number;
  ranks: TimelineRank[];
}

export interface RunEvent {
  time: number;
  level: string;
  kind: string;
  rank: number;
  step: number;
  message: string;
  data?: { [key: string]: Json };
}

export interface Finding {
  cause: string;
  confidence: number;
  cost_percent: number;
  cost_usd_per_hour?: Maybe;
  ranks: number[];
  evidence: string;
  fix: string;
  gain_percent?: Maybe;
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

// Relative to the page's own address, so that a proxy may serve it under any path.
export function apiUrl(path: string): string {
  return new URL(`api/v1${path}`, document.baseURI.replace(/#.*$/, "")).toString();
}

export const runPath = (id: string, rest = ""): string => `/runs/${encodeURIComponent(id)}${rest}`;

const kTimeoutMs = 20_000;

export async function ask<T>(path: string, options: { signal?: AbortSignal; body?: Json } = {}): Promise<T> {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), kTimeoutMs);
  const cancel = () => stop.abort();
  options.signal?.addEventListener("abort", cancel);
  try {
    const post = options.body !== undefined;
    const answer = await fetch(apiUrl(path), {
      method: post ? "POST" : "GET",
      headers: post ? { "content-type": "application/json" } : {},
      body: post ? JSON.stringify(options.body) : undefined,
      credentials: "same-origin",
      signal: stop.signal,
    });
    const text = await answer.text();
    if (!answer.ok) throw new ApiError(answer.status, problemOf(answer.status, text));
    return readJson(text) as T;
  } catch (problem) {
    if (problem instanceof ApiError || options.signal?.aborted) throw problem;
    throw new ApiError(0, stop.signal.aborted ? "the server did not answer in 20 s" : "the server cannot be reached");
  } finally {
    clearTimeout(timer);
    options.signal?.removeEventListener("abort", cancel);
  }
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const kUnprintable = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const kMayHold = /\\u00[01]|[\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/;

// Characters that would steer a terminal, or turn the text after them around, are shown as what they are: not text.
export function readJson(text: string): unknown {
  if (!kMayHold.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value) => (typeof value === "string" ? value.replace(kUnprintable, "\ufffd") : value));
}

function problemOf(status: number, text: string): string {
  try {
    const body = JSON.parse(text) as { error?: string | { problem?: string; fix?: string } };
    if (typeof body.error === "string") return body.error;
    if (body.error?.problem) return [body.error.problem, body.error.fix].filter(Boolean).join("; ");
  } catch {
    // Not JSON: a proxy's own page, say.
  }
  if (status === 401 || status === 403)
    return "the server wants its token: open the address that lockstep serve printed";
  return `the server answered ${status}`;
}

export interface Asked<T> {
  data: T | null;
  error: string | null;
  loading: boolean;
  reload: () => void;
}

// Asks when `path` changes; null: nothing yet. What was there stays on the page while the next answer is on its way, as
// long as `keep` (by default the path itself) is the same. Another `version` asks again.
export function useAsk<T>(path: string | null, keep: string | null = path, version = 0): Asked<T> {
  const [state, setState] = useState<{ keep: string | null; data: T | null; error: string | null; loading: boolean }>({
    keep,
    data: null,
    error: null,
    loading: path !== null,
  });
  const [again, setAgain] = useState(0);
  const latest = useRef(0);
  useEffect(() => {
    if (path === null) return;
    const mine = ++latest.current;
    const stop = new AbortController();
    setState((old) => ({ keep, data: old.keep === keep ? old.data : null, error: null, loading: true }));
    ask<T>(path, { signal: stop.signal })
      .then((data) => mine === latest.current && setState({ keep, data, error: null, loading: false }))
      .catch((problem: Error) => {
        if (stop.signal.aborted || mine !== latest.current) return;
        setState((old) => ({ ...old, error: problem.message, loading: false }));
      });
    return () => stop.abort();
  }, [path, again, version]);
  const reload = useCallback(() => setAgain((count) => count + 1), []);
  return { data: state.keep === keep ? state.data : null, error: state.error, loading: state.loading, reload };
}

export function perSecond(run: RunRow): Maybe {
  return run.unit === "samples" ? run.samples_per_second : run.tokens_per_second;
}
