// Server-sent events with a connection that comes back by itself: 1, 2, 4 ... 30 s between attempts. A page that nobody
// looks at gives its connection back: a browser has six for all of its tabs.
import { useEffect, useRef, useState } from "preact/hooks";
import { apiUrl, ask, readJson } from "./api";

export type LiveState = "connecting" | "live" | "stale" | "ended";
export interface Tick {
  step: number;
  time: number;
  values: Record<string, number | null>;
}

type Handlers = Record<string, (data: never) => void>;

const kLongestPauseMs = 30_000;
const kHiddenMs = 10_000; // how long a hidden page stays connected
// Without a message for so long the server is asked whether it is there: a connection may be dead without saying so, and
// a browser does not show the comments that keep one alive.
const kQuietMs = 45_000;

// `path` null: nothing to listen to. Handlers may change between renders; the newest are called.
export function useLive(path: string | null, handlers: Handlers, ended = false): LiveState {
  const [state, setState] = useState<LiveState>(ended ? "ended" : "connecting");
  const latest = useRef(handlers);
  latest.current = handlers;
  useEffect(() => {
    if (path === null || ended) {
      setState(ended ? "ended" : "connecting");
      return;
    }
    let source: EventSource | null = null;
    let retry: ReturnType<typeof setTimeout> | undefined;
    let watchdog: ReturnType<typeof setTimeout> | undefined;
    let pause = 1000;
    let over = false;
    const alive = () => {
      setState("live");
      clearTimeout(watchdog);
      watchdog = setTimeout(probe, kQuietMs);
    };
    const probe = () => {
      ask("/runs?limit=1").then(
        () => !over && alive(),
        () => {
          if (over) return;
          setState("stale");
          open();
        },
      );
    };
    const open = () => {
      if (over) return;
      clearTimeout(retry);
      source?.close();
      source = new EventSource(apiUrl(path));
      source.onopen = () => {
        pause = 1000;
        alive();
      };
      source.onerror = () => {
        source?.close();
        if (over) return;
        setState("stale");
        retry = setTimeout(open, pause);
        pause = Math.min(pause * 2, kLongestPauseMs);
      };
      for (const name of Object.keys(latest.current)) {
        source.addEventListener(name, (message) => {
          alive();
          let data: unknown = null;
          try {
            data = readJson((message as MessageEvent<string>).data);
          } catch {
            return; // half a message: the next one is whole
          }
          latest.current[name]?.(data as never);
          if (name === "end") {
            over = true;
            source?.close();
            clearTimeout(watchdog);
            setState("ended");
          }
        });
      }
    };
    let hiding: ReturnType<typeof setTimeout> | undefined;
    const seen = () => {
      clearTimeout(hiding);
      if (over) return;
      if (document.visibilityState === "hidden") {
        hiding = setTimeout(() => {
          source?.close();
          clearTimeout(retry);
          clearTimeout(watchdog);
          setState("stale");
        }, kHiddenMs);
      } else if (source?.readyState === EventSource.CLOSED) {
        pause = 1000;
        open();
      }
    };
    open();
    document.addEventListener("visibilitychange", seen);
    return () => {
      over = true;
      for (const timer of [retry, watchdog, hiding]) clearTimeout(timer);
      source?.close();
      document.removeEventListener("visibilitychange", seen);
    };
  }, [path, ended]);
  return state;
}
