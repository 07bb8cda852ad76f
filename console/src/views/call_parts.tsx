/** What the views of a call have in common: its words, what happened, and how fast it answered. */

import { useEffect, useRef, useState } from "preact/hooks";
import { mayDo } from "../api/types";
import { Action, Problem } from "../parts/basic";
import type { CallLog, Mark, Speech, WaitingCall } from "../state/call_log";
import { useServer } from "../state/server";
import { formatDuration, showUnseen, summarize } from "../text";

export function Speeches({ speeches }: { speeches: readonly Speech[] }) {
  const end = useRef<HTMLDivElement>(null);
  const count = speeches.length;
  useEffect(() => end.current?.scrollIntoView?.({ block: "nearest" }), [count]);
  if (count === 0) return <p class="quiet">Nothing was said yet.</p>;
  return (
    <div class="speeches">
      <ol class="transcript" aria-live="polite">
        {speeches.map((one) => (
          <li key={one.id} class={`entry entry-${one.who}`}>
            <div class="entry-head">
              <span class="who">{one.who === "assistant" ? "agent" : one.who === "user" ? "caller" : one.who}</span>
              {one.isSettled && one.unheard !== "" && <span class="tag warn">interrupted</span>}
            </div>
            <p class="entry-text">
              {showUnseen(one.said)}
              {one.unheard !== "" && (
                <span class={one.isSettled ? "unheard" : "unconfirmed"}>
                  {one.isSettled && <span class="visually-hidden"> not heard: </span>}
                  {showUnseen(one.unheard)}
                </span>
              )}
              {one.said === "" && one.unheard === "" && <span class="quiet">{one.isAudio ? "speech" : "…"}</span>}
            </p>
          </li>
        ))}
      </ol>
      <div ref={end} />
    </div>
  );
}

export function Marks({ marks }: { marks: readonly Mark[] }) {
  return (
    <ol class="marks" aria-label="What happened">
      {marks.map((mark, index) => (
        <li key={index} class={`mark-row mark-${mark.kind}`}>
          <span class="number quiet">{formatClock(mark.at)}</span>
          <strong>{summarize(mark.title, 60)}</strong>
          <span class="quiet">{summarize(mark.text, 160)}</span>
        </li>
      ))}
    </ol>
  );
}

interface DecisionsProps {
  waiting: readonly WaitingCall[];
  decide(callId: string, decision: "approve" | "reject"): Promise<unknown>;
}

/** Tool calls of a call that wait for a decision. They are part of the call, and not in the inbox. */
export function Decisions({ waiting, decide }: DecisionsProps) {
  const mayDecide = mayDo(useServer(), "approver");
  const [problem, setProblem] = useState<unknown>(null);
  return (
    <>
      {waiting.map((one) => (
        <div class="why decide" key={one.callId} role="group" aria-label={`Decide about ${one.tool}`}>
          <span>
            The agent wants to call <strong>{summarize(one.tool, 60)}</strong>{" "}
            <code>{summarize(one.arguments, 200)}</code>
          </span>
          {mayDecide && (
            <span class="actions">
              <Action kind="primary" act={() => decide(one.callId, "approve")} onProblem={setProblem}>
                Approve
              </Action>
              <Action kind="danger" act={() => decide(one.callId, "reject")} onProblem={setProblem}>
                Reject
              </Action>
            </span>
          )}
        </div>
      ))}
      {problem !== null && <Problem problem={problem} />}
    </>
  );
}

export function Latency({ log }: { log: CallLog }) {
  const { latencies } = log;
  const last = latencies.at(-1);
  if (last === undefined) return null;
  const tallest = Math.max(300, ...latencies.slice(-40));
  const middle = [...latencies].sort((a, b) => a - b)[Math.floor(latencies.length / 2)] ?? last;
  return (
    <div class="latency">
      <div class="latency-bars" role="img" aria-label="Time to the first sound of each answer">
        {latencies.slice(-40).map((one, index) => (
          <i key={index} style={{ height: `${(one / tallest) * 100}%` }} title={formatDuration(one / 1000)} />
        ))}
      </div>
      <span>
        <strong>{formatDuration(last / 1000)}</strong> to the latest answer
        {latencies.length > 1 && `, ${formatDuration(middle / 1000)} in the middle of ${latencies.length}`}
      </span>
    </div>
  );
}

function formatClock(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
