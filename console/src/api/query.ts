/** What a view shows of the API: the last confirmed answer, kept while a newer one is fetched. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Store, useStore } from "../state/store";
import { get, type Query } from "./client";

/** Grows when everything on the page may be old: after a reconnection, or a change by this page. */
export const epoch = new Store(0);
export const refreshAll = () => epoch.set(epoch.value + 1);

export interface Answer<T> {
  data: T | null;
  problem: unknown;
  isLoading: boolean;
  refresh(): void;
}

/** Fetch `path` now, when it changes, and every `every` milliseconds while the page is visible. */
export function useQuery<T>(path: string | null, query: Query = {}, every = 0): Answer<T> {
  return useFetch<T>(
    path === null ? null : `${path} ${JSON.stringify(query)}`,
    (signal) => get<T>(path ?? "", query, signal),
    every,
  );
}

interface State<T> {
  name: string | null;
  data: T | null;
  problem: unknown;
}

/** Like useQuery, for any way to fetch. A new `name` is another thing: its old data are not shown. */
export function useFetch<T>(name: string | null, fetchData: (signal: AbortSignal) => Promise<T>, every = 0): Answer<T> {
  const [state, setState] = useState<State<T>>({ name, data: null, problem: null });
  const [round, setRound] = useState(0);
  const fetcher = useRef(fetchData);
  fetcher.current = fetchData;
  const current = useStore(epoch);

  useEffect(() => {
    if (name === null) return;
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const load = async () => {
      if (!document.hidden) {
        try {
          const data = await fetcher.current(controller.signal);
          setState({ name, data, problem: null });
        } catch (problem) {
          if (controller.signal.aborted) return;
          setState((old) => ({ name, data: old.name === name ? old.data : null, problem }));
        }
      }
      if (every > 0 && !controller.signal.aborted) timer = setTimeout(load, every);
    };
    void load();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [name, every, round, current]);

  const refresh = useCallback(() => setRound((old) => old + 1), []);
  const isCurrent = state.name === name;
  const data = isCurrent ? state.data : null;
  return { data, problem: isCurrent ? state.problem : null, isLoading: data === null && name !== null, refresh };
}
