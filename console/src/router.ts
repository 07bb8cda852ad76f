/** Addresses of views: `#/runs/RUN_ID?at=7`. They work wherever the page is mounted, and need nothing of the server. */

import { Store, useStore } from "./state/store";

export interface Route {
  parts: string[];
  query: Record<string, string>;
}

export function parseRoute(hash: string): Route {
  const [path = "", search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, query: Object.fromEntries(new URLSearchParams(search)) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export type RouteQuery = Record<string, string | number | null | undefined>;

export function makeHref(parts: string[], query: RouteQuery = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text && `?${text}`}`;
}

export const route = new Store<Route>(parseRoute(location.hash));
window.addEventListener("hashchange", () => route.set(parseRoute(location.hash)));

export const useRoute = () => useStore(route);

export function navigate(parts: string[], query: RouteQuery = {}): void {
  location.hash = makeHref(parts, query);
}

/** Change the query of the address without a new entry in the browser's history, as a slider does. */
export function replaceQuery(query: RouteQuery): void {
  const href = makeHref(route.value.parts, { ...route.value.query, ...query });
  history.replaceState(null, "", href);
  route.set(parseRoute(href));
}
