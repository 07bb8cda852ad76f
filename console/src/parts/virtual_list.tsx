/** A list of rows of one height, of which only those that can be seen exist. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export interface VirtualListProps<T> {
  items: readonly T[];
  rowHeight: number;
  label: string;
  getKey(item: T): string | number;
  children(item: T, index: number): ComponentChildren;
  /** Stay at the end while items are added, until the reader scrolls up. */
  followsEnd?: boolean;
  /** The index of a row to bring into view when it changes. */
  shown?: number | null;
}

const EXTRA_ROWS = 8;
/** Browsers lay out at most some 33 million pixels; beyond that the list is scaled. */
const TALLEST = 15_000_000;

export function VirtualList<T>(props: VirtualListProps<T>) {
  const { items, rowHeight, label, getKey, children, followsEnd = false, shown = null } = props;
  const frame = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const isAtEnd = useRef(followsEnd);

  useLayoutEffect(() => {
    const element = frame.current;
    if (element === null) return;
    setHeight(element.clientHeight);
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  useLayoutEffect(() => {
    const element = frame.current;
    if (element !== null && followsEnd && isAtEnd.current) element.scrollTop = element.scrollHeight;
  }, [items.length, followsEnd]);

  useEffect(() => {
    const element = frame.current;
    if (element === null || shown === null) return;
    const start = shown * rowHeight;
    if (start < element.scrollTop) element.scrollTop = start;
    else if (start + rowHeight > element.scrollTop + element.clientHeight) {
      element.scrollTop = start + rowHeight - element.clientHeight;
    }
  }, [shown, rowHeight]);

  const total = items.length * rowHeight;
  const tall = Math.min(total, TALLEST);
  const scale = total > tall ? (total - height) / (tall - height) : 1;
  const offset = top * scale;
  const first = Math.max(0, Math.floor(offset / rowHeight) - EXTRA_ROWS);
  const last = Math.min(items.length, Math.ceil((offset + height) / rowHeight) + EXTRA_ROWS);
  const shift = top + (first * rowHeight - offset);
  const scroll = (event: Event) => {
    const element = event.currentTarget as HTMLDivElement;
    isAtEnd.current = element.scrollTop + element.clientHeight >= element.scrollHeight - rowHeight;
    setTop(element.scrollTop);
  };
  return (
    <div
      class="virtual"
      ref={frame}
      onScroll={scroll}
      tabIndex={0}
      role="list"
      aria-label={label}
      style={{ "--content-height": `${tall}px` }}
    >
      <div class="virtual-space" style={{ height: `${tall}px` }} role="presentation">
        <div style={{ transform: `translateY(${shift}px)` }} role="presentation">
          {items.slice(first, last).map((item, index) => (
            <div
              key={getKey(item)}
              class="virtual-row"
              style={{ height: `${rowHeight}px` }}
              role="listitem"
              aria-setsize={items.length}
              aria-posinset={first + index + 1}
            >
              {children(item, first + index)}
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}
