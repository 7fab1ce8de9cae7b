// The frame around every page: navigation, colours, help, and which page the address names.
import { useEffect, useRef, useState } from "preact/hooks";
import { useKeys } from "./lib/keys";
import { go, type Route, useRoute } from "./lib/route";
import { nextTheme, useTheme } from "./lib/theme";
import { ClusterPage } from "./pages/cluster";
import { ComparePage } from "./pages/compare";
import { RunPage } from "./pages/run";
import { RunsPage } from "./pages/runs";
import { StudiesPage } from "./pages/studies";
import { StudyPage } from "./pages/study";
import { Empty } from "./parts/bits";
import { Help } from "./parts/help";

const kPlaces = [
  { href: "#/runs", label: "Runs", first: ["runs", "compare"] },
  { href: "#/studies", label: "Studies", first: ["studies"] },
  { href: "#/cluster", label: "Cluster", first: ["cluster"] },
];

function Page({ route }: { route: Route }) {
  const [first = "runs", id, tab] = route.path;
  if (first === "runs") {
    return id ? (
      <RunPage key={id} id={id} tab={tab ?? "overview"} query={route.query} />
    ) : (
      <RunsPage query={route.query} />
    );
  }
  if (first === "compare") return <ComparePage query={route.query} />;
  if (first === "studies") return id ? <StudyPage key={id} id={id} /> : <StudiesPage />;
  if (first === "cluster") return <ClusterPage />;
  return (
    <Empty title="There is no such page">
      <a href="#/runs">All runs</a>
    </Empty>
  );
}

export function App() {
  const route = useRoute();
  const theme = useTheme();
  const [help, setHelp] = useState(false);
  const main = useRef<HTMLElement>(null);
  const place = route.path.slice(0, 2).join("/");
  useKeys({
    "?": () => setHelp(true),
    t: nextTheme,
    r: () => go("#/runs"),
    s: () => go("#/studies"),
    c: () => go("#/cluster"),
  });
  useEffect(() => window.scrollTo(0, 0), [place]);
  return (
    <>
      <button type="button" class="skip" onClick={() => main.current?.focus()}>
        Skip to content
      </button>
      <header class="top">
        <a class="brand" href="#/runs" aria-label="Lockstep, all runs">
          <svg viewBox="0 0 32 32" width="22" height="22" aria-hidden="true">
            <rect x="3" y="5" width="26" height="5" rx="2.5" />
            <rect x="3" y="13.5" width="26" height="5" rx="2.5" />
            <rect x="3" y="22" width="26" height="5" rx="2.5" />
          </svg>
          Lockstep
        </a>
        <nav aria-label="Main">
          {kPlaces.map((entry) => (
            <a
              key={entry.href}
              href={entry.href}
              aria-current={entry.first.includes(route.path[0] ?? "runs") ? "page" : undefined}
            >
              {entry.label}
            </a>
          ))}
        </nav>
        <div class="top-end">
          <button
            type="button"
            class="icon"
            onClick={nextTheme}
            aria-label={`Colours: ${theme}. Change`}
            title={`Colours: ${theme} (t)`}
          >
            <span aria-hidden="true">{theme === "dark" ? "☾" : theme === "light" ? "☀" : "◐"}</span>
          </button>
          <button type="button" class="icon" onClick={() => setHelp(true)} aria-label="Keys and help" title="Keys (?)">
            <span aria-hidden="true">?</span>
          </button>
        </div>
      </header>
      <main id="main" ref={main} tabIndex={-1}>
        <Page route={route} />
      </main>
      {help && <Help close={() => setHelp(false)} />}
    </>
  );
}
