/** The events of a run as rows, each with the time since the one before it. */

import { useMemo } from "preact/hooks";
import type { RunEvent } from "../api/types";
import { formatDuration, formatTime } from "../text";
import { describeEvent } from "./run_words";
import { VirtualList } from "./virtual_list";

interface Props {
  events: readonly RunEvent[];
  at: number | null;
  choose(step: number): void;
}

const ROW_HEIGHT = 30;

export function Timeline({ events, at, choose }: Props) {
  const [begin, total] = useMemo(() => {
    const first = events[0]?.at ?? 0;
    return [first, Math.max(0.001, (events.at(-1)?.at ?? first) - first)];
  }, [events]);
  return (
    <VirtualList
      items={events}
      rowHeight={ROW_HEIGHT}
      label="Events"
      getKey={(event) => event.seq ?? 0}
      followsEnd={at === null}
      shown={at === null ? null : at - 1}
    >
      {(event, index) => {
        const before = events[index - 1]?.at ?? event.at;
        const { kind, title, text } = describeEvent(event);
        const left = ((before - begin) / total) * 100;
        const width = ((event.at - before) / total) * 100;
        return (
          <button
            type="button"
            class={`event event-${kind}${event.seq === at ? " current" : ""}`}
            aria-pressed={event.seq === at}
            onClick={() => choose(event.seq ?? 0)}
            title={formatTime(event.at)}
          >
            <span class="event-seq">{event.seq}</span>
            <span class="event-title">{title}</span>
            <span class="event-text">{text}</span>
            <span class="event-bar" aria-hidden="true">
              <i style={{ left: `${left}%`, width: `${Math.max(0.5, width)}%` }} />
            </span>
            <span class="event-time">+{formatDuration(event.at - before)}</span>
          </button>
        );
      }}
    </VirtualList>
  );
}
