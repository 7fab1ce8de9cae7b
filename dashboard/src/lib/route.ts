// Where the reader is: hash routes, so that every view has an address and the server needs to know none of them.
//   #/runs   #/runs/ID/TAB?step=3   #/compare?runs=A,B   #/studies   #/studies/ID   #/cluster
import { useEffect, useState } from "preact/hooks";

export interface Route {
  path: string[];
  query: URLSearchParams;
}

export function parseRoute(hash: string): Route {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const decode = (part: string): string => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part; // a stray '%' is a name that nothing has
    }
  };
  return { path: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query ?? "") };
}

export function hrefOf(path: string[], query: Record<string, string | number | undefined> = {}): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const tail = pairs.map(([key, value]) => `${key}=${encodeURIComponent(String(value))}`).join("&");
  return `#/${path.map(encodeURIComponent).join("/")}${tail ? `?${tail}` : ""}`;
}

export function go(href: string, replace = false): void {
  if (replace) {
    history.replaceState(null, "", href);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = href.slice(1);
  }
}

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return parseRoute(hash);
}
