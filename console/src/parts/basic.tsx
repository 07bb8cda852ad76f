/** Small pieces that every view uses. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { ConnectionLost, describeError } from "../api/client";
import { makeHref } from "../router";
import { useNow } from "../state/clock";
import { formatBytes, formatDuration, formatJson, formatTime, showUnseen } from "../text";

export function Status({ status }: { status: string }) {
  return <span class={`status status-${status}`}>{status}</span>;
}

/** How long ago something was, or how long it is until then; the exact time is its title. */
export function Age({ at }: { at: number }) {
  const now = useNow();
  const seconds = now - at;
  const text = Math.abs(seconds) < 2 ? "now" : seconds < 0 ? `in ${round(-seconds)}` : `${round(seconds)} ago`;
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={formatTime(at)}>
      {text}
    </time>
  );
}

function round(seconds: number): string {
  const units: [number, string][] = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
  ];
  for (const [size, name] of units) if (seconds >= size) return `${Math.floor(seconds / size)} ${name}`;
  return `${Math.floor(seconds)} s`;
}

export function Expiry({ at }: { at: number }) {
  const now = useNow();
  const left = at - now;
  return (
    <span class={left < 60 ? "expiry soon" : "expiry"} title={formatTime(at)}>
      {left > 0 ? `expires in ${formatDuration(Math.max(1, Math.round(left)))}` : "expiring"}
    </span>
  );
}

const LONGEST = 4000;

/** Foreign text as it is: the beginning of a long one, and the rest on request. */
export function Text({ text, longest = LONGEST }: { text: string; longest?: number }) {
  const [isWhole, setWhole] = useState(false);
  if (text.length <= longest || isWhole) return <>{showUnseen(text)}</>;
  return (
    <>
      {showUnseen(text.slice(0, longest))}
      <button type="button" class="link more" onClick={() => setWhole(true)}>
        … show all {formatBytes(text.length)}
      </button>
    </>
  );
}

export function Code({ value, label }: { value: unknown; label?: string }) {
  return (
    <pre class="code" tabIndex={0} role="region" aria-label={label ?? "data"}>
      <Text text={formatJson(value)} />
    </pre>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

/** An error: what happened, and what to do. */
export function Problem({ problem, retry }: { problem: unknown; retry?: () => void }) {
  return (
    <div class="problem" role="alert">
      <span>{describeError(problem)}</span>
      {retry && !(problem instanceof ConnectionLost) && (
        <button type="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

/** A thing that could not be read: it may not exist, or belong to somebody else. */
export function Missing({ problem, retry, list }: { problem: unknown; retry(): void; list: "runs" | "sessions" }) {
  return (
    <>
      <Problem problem={problem} retry={retry} />
      <p>
        <a href={makeHref([list])}>All {list}</a>
      </p>
    </>
  );
}

/** A place that keeps its size while the first answer is on its way. */
export function Loading() {
  return (
    <div class="loading" role="status">
      Loading…
    </div>
  );
}

export interface ActionProps {
  children: ComponentChildren;
  act(): Promise<unknown>;
  onProblem(problem: unknown): void;
  kind?: "primary" | "danger" | "plain" | "link";
  title?: string;
  disabled?: boolean;
}

/** A button that waits for the server, and cannot be pressed twice. */
export function Action({ children, act, onProblem, kind = "plain", title, disabled }: ActionProps) {
  const [isBusy, setBusy] = useState(false);
  const press = async () => {
    setBusy(true);
    onProblem(null);
    try {
      await act();
    } catch (problem) {
      onProblem(problem);
    } finally {
      setBusy(false);
    }
  };
  return (
    <button type="button" class={kind} disabled={isBusy || disabled} title={title} onClick={press} aria-busy={isBusy}>
      {children}
    </button>
  );
}

/** A list of names and values. */
export function Facts({ facts }: { facts: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
