// All runs: filter, search, tags, and the choice of what to compare.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type RunRow, useAsk } from "../lib/api";
import { useKeys } from "../lib/keys";
import { useLive } from "../lib/live";
import { go, hrefOf } from "../lib/route";
import { Empty, LivePill, Waiting } from "../parts/bits";
import { RunTable } from "../parts/run_table";

const kStatuses = ["running", "done", "failed", "interrupted", "lost"];
export const kMostCompared = 6;
const kPage = 100;
const kFiguresEveryMs = 4000; // the stream tells of runs that begin and end, not of every step

function useQueryState(query: URLSearchParams) {
  const status = query.get("status") ?? "";
  const tag = query.get("tag") ?? "";
  const search = query.get("q") ?? "";
  const set = (change: Partial<{ status: string; tag: string; q: string }>) =>
    go(hrefOf(["runs"], { status, tag, q: search, ...change }), true);
  return { status, tag, search, set };
}

// Once a second at most, however often the list changes.
function useCalm(action: () => void): () => void {
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const latest = useRef(action);
  latest.current = action;
  useEffect(() => () => clearTimeout(timer.current), []);
  return () => {
    if (timer.current) return;
    timer.current = setTimeout(() => {
      timer.current = undefined;
      latest.current();
    }, 1000);
  };
}

export function RunsPage({ query }: { query: URLSearchParams }) {
  const { status, tag, search, set } = useQueryState(query);
  const [limit, setLimit] = useState(kPage);
  const [selected, setSelected] = useState<string[]>([]);
  const [cursor, setCursor] = useState(-1);
  const field = useRef<HTMLInputElement>(null);
  const ask = new URLSearchParams({ limit: String(limit) });
  if (status) ask.set("status", status);
  if (tag) ask.set("tag", tag);
  if (search) ask.set("q", search);
  const runs = useAsk<{ runs: RunRow[]; more: boolean }>(`/runs?${ask}`, "runs");
  const refresh = useCalm(runs.reload);
  const live = useLive("/stream", { runs: refresh });
  const rows = runs.data?.runs ?? [];
  const running = rows.some((run) => run.status === "running");
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => document.visibilityState === "visible" && runs.reload(), kFiguresEveryMs);
    return () => clearInterval(timer);
  }, [running]);
  const tags = useMemo(() => [...new Set(rows.flatMap((run) => run.tags ?? []))].sort(), [rows]);

  const toggle = (id: string) =>
    setSelected((old) =>
      old.includes(id) ? old.filter((one) => one !== id) : old.length < kMostCompared ? [...old, id] : old,
    );
  const compare = () => selected.length > 1 && go(hrefOf(["compare"], { runs: selected.join(",") }));
  const move = (by: number) => {
    const next = Math.max(0, Math.min(rows.length - 1, cursor + by));
    setCursor(next);
    document.querySelector<HTMLElement>(`[data-row="${next}"] a`)?.focus();
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    x: () => rows[cursor] && toggle(rows[cursor].id),
    v: compare,
    "/": () => field.current?.focus(),
    Escape: () => setSelected([]),
  });

  return (
    <>
      <div class="page-head">
        <h1>Runs</h1>
        <LivePill state={live} />
      </div>
      <search class="filters">
        <input
          ref={field}
          type="search"
          class="search"
          placeholder="Search name, model, host, id   /"
          aria-label="Search runs"
          value={search}
          onInput={(event) => set({ q: event.currentTarget.value })}
        />
        <fieldset class="chips">
          <legend class="hidden">Status</legend>
          {["", ...kStatuses].map((word) => (
            <button
              type="button"
              key={word}
              class="chip"
              aria-pressed={status === word}
              onClick={() => set({ status: word })}
            >
              {word || "all"}
            </button>
          ))}
        </fieldset>
        {(tags.length > 0 || tag) && (
          <label class="tag-filter">
            Tag
            <select value={tag} onChange={(event) => set({ tag: event.currentTarget.value })}>
              <option value="">any</option>
              {[...new Set([...tags, ...(tag ? [tag] : [])])].map((word) => (
                <option key={word} value={word}>
                  {word}
                </option>
              ))}
            </select>
          </label>
        )}
      </search>
      {!runs.data ? (
        <Waiting {...runs} what="Runs" />
      ) : rows.length === 0 ? (
        <NoRuns filtered={Boolean(status || tag || search)} />
      ) : (
        <>
          {runs.error && <p class="warning">{runs.error}</p>}
          <RunTable
            rows={rows}
            selected={selected}
            cursor={cursor}
            toggle={toggle}
            pickTag={(word) => set({ tag: word })}
          />
          {runs.data.more && (
            <button type="button" class="more" onClick={() => setLimit(limit + kPage)}>
              Show more
            </button>
          )}
        </>
      )}
      {selected.length > 0 && (
        <section class="compare-bar" aria-label="Comparison">
          <span>
            {selected.length} selected{selected.length < 2 ? ": choose one more to compare" : ""}
          </span>
          <button type="button" class="primary" disabled={selected.length < 2} onClick={compare}>
            Compare
          </button>
          <button type="button" onClick={() => setSelected([])}>
            Clear
          </button>
        </section>
      )}
    </>
  );
}

function NoRuns({ filtered }: { filtered: boolean }) {
  return filtered ? (
    <Empty title="No run matches">
      <button type="button" onClick={() => go("#/runs", true)}>
        Show all
      </button>
    </Empty>
  ) : (
    <Empty title="No run is recorded yet">
      <p>
        Start one: <code>lockstep demo</code> or <code>lockstep train JOB.yaml</code>. It appears here by itself.
      </p>
    </Empty>
  );
}
