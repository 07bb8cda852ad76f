/** The call of this page: speak or write, interrupt, decide, hang up. */

import { useState } from "preact/hooks";
import { Status } from "../parts/basic";
import { saveBlob } from "../parts/download";
import { Waveforms } from "../parts/waveforms";
import { makeHref } from "../router";
import { useNow } from "../state/clock";
import type { CallState, LiveCall } from "../state/live_call";
import { useStore } from "../state/store";
import { formatDuration, showUnseen, summarize } from "../text";
import { Decisions, Latency, Marks, Speeches } from "./call_parts";

const SPAN_MS = 30_000;

export function LiveCallView({ call }: { call: LiveCall }) {
  const log = useStore(call.log);
  const state = useStore(call.state);
  const microphone = useStore(call.microphone);
  const problem = useStore(call.problem);
  const hasEnded = state.kind === "ended";
  return (
    <section class="call">
      <header>
        <h1>
          {showUnseen(log.agent)} <Connection state={state} />
        </h1>
        <p class="quiet">
          <a href={makeHref(["calls"])}>all calls</a> ·{" "}
          <a href={makeHref(["sessions", call.sessionId])}>session {summarize(call.sessionId, 40)}</a>
        </p>
      </header>
      <Waveforms
        caller={call.caller}
        agent={call.agent}
        marks={log.marks}
        getEnd={() => (hasEnded ? log.lastAt * 1000 : call.now)}
        spanMs={SPAN_MS}
        isLive={!hasEnded}
      />
      <Latency log={log} />
      <div class="actions">
        {!hasEnded && (
          <>
            {microphone === "on" ? (
              <button type="button" onClick={() => call.mute()}>
                Mute
              </button>
            ) : (
              <button type="button" onClick={() => call.speak()}>
                {microphone === "muted" ? "Unmute" : "Use the microphone"}
              </button>
            )}
            <button type="button" onClick={() => call.interrupt()}>
              Interrupt
            </button>
            <button type="button" class="danger" onClick={() => call.hangUp()}>
              Hang up
            </button>
          </>
        )}
        <button type="button" onClick={() => saveBlob(call.recorder.makeBlob(), `${call.callId}.jsonl`)}>
          Save the recording
        </button>
      </div>
      {problem !== null && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      <Decisions waiting={log.waiting} decide={async (id, decision) => call.decide(id, decision)} />
      <div class="call-columns">
        <div>
          <Speeches speeches={log.speeches} />
          {!hasEnded && <Write call={call} />}
        </div>
        <Marks marks={log.marks} />
      </div>
    </section>
  );
}

export function Connection({ state }: { state: CallState }) {
  const now = useNow();
  switch (state.kind) {
    case "open":
      return <Status status="running" />;
    case "lost":
      return (
        <span class="tag warn" role="status">
          connection lost for {formatDuration(Math.max(1, Math.round(now - state.since / 1000)))}, trying again
        </span>
      );
    case "ended":
      return <span class="status">{state.reason === "" ? "ended" : `ended: ${state.reason}`}</span>;
    default:
      return <span class="status">connecting</span>;
  }
}

function Write({ call }: { call: LiveCall }) {
  const [text, setText] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    if (!text.trim()) return;
    call.write(text);
    setText("");
  };
  return (
    <form class="search" onSubmit={submit}>
      <input
        type="text"
        aria-label="Say something in writing"
        placeholder="or write"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <button type="submit" class="primary" disabled={!text.trim()}>
        Send
      </button>
    </form>
  );
}
