/** The events of one run, live: those of the journal, and the words of a model that is answering. */

import { useEffect, useRef, useState } from "preact/hooks";
import { segment } from "../api/client";
import { follow, type ServerEvent, type StreamState } from "../api/events";
import type { RunEvent } from "../api/types";

export interface RunEvents {
  events: readonly RunEvent[];
  words: string;
  /** Words of the answer that did not reach this page; the complete answer follows. */
  missed: boolean;
  stream: StreamState;
}

const NOTHING: RunEvents = { events: [], words: "", missed: false, stream: { kind: "connecting" } };

/** Follow a run. `round` follows it again after the end, for example when it was resumed. */
export function useRunEvents(runId: string, round: number): RunEvents {
  const [state, setState] = useState<RunEvents>(NOTHING);
  const known = useRef<{ runId: string; events: RunEvent[] }>({ runId, events: [] });

  useEffect(() => {
    const controller = new AbortController();
    if (known.current.runId !== runId) known.current = { runId, events: [] };
    const { events } = known.current;
    let words = "";
    let missed = false;
    let stream: StreamState = { kind: "connecting" };
    let frame = 0;
    const draw = () => {
      frame = 0;
      setState({ events: events.slice(), words, missed, stream });
    };
    const schedule = () => {
      if (frame === 0) frame = requestAnimationFrame(draw);
    };
    const add = (received: ServerEvent[]) => {
      for (const one of received) {
        if (one.event === "end") continue;
        const event = JSON.parse(one.data) as RunEvent;
        if (event.type === "model.delta") words += String(event.data.delta ?? "");
        else if (event.type === "model.gap") missed = true;
        else if (event.seq !== null && event.seq > (events.at(-1)?.seq ?? 0)) {
          events.push(event);
          words = "";
          missed = false;
        }
      }
      schedule();
    };
    const last = events.at(-1)?.seq ?? null;
    void follow(`/runs/${segment(runId)}/events`, {
      signal: controller.signal,
      lastId: last === null ? null : String(last),
      onEvents: add,
      onState: (changed) => {
        stream = changed;
        schedule();
      },
    });
    return () => {
      controller.abort();
      cancelAnimationFrame(frame);
    };
  }, [runId, round]);
  return state;
}
