/** A recording of a call, at any time of it. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { Levels } from "../audio/levels";
import { Empty } from "../parts/basic";
import { Waveforms } from "../parts/waveforms";
import { makeHref } from "../router";
import { addToLog, EMPTY_LOG } from "../state/call_log";
import type { RecordedMessage } from "../state/call_recorder";
import { Store, useStore } from "../state/store";
import { formatDuration, showUnseen } from "../text";
import { Latency, Marks, Speeches } from "./call_parts";

/** The recording that was opened last. It is nowhere but in this page. */
export const recording = new Store<{ name: string; messages: RecordedMessage[] } | null>(null);

const STEP_MS = 100;

export function ReplayView() {
  const found = useStore(recording);
  if (found === null) {
    return (
      <Empty title="No recording is open.">
        <p>
          <a href={makeHref(["calls"])}>Choose one</a>: it stays on this machine.
        </p>
      </Empty>
    );
  }
  return <Replayed key={found.name} {...found} />;
}

function Replayed({ name, messages }: { name: string; messages: RecordedMessage[] }) {
  const end = messages.at(-1)?.at ?? 0;
  const [at, setAt] = useState(end);
  const [isPlaying, setPlaying] = useState(false);
  const { caller, agent } = useMemo(() => measure(messages), [messages]);
  const shown = messages.findLastIndex((one) => one.at <= at) + 1;
  const log = useMemo(
    () => messages.slice(0, shown).reduce((known, one) => addToLog(known, one.message), EMPTY_LOG),
    [messages, shown],
  );
  useEffect(() => {
    if (!isPlaying) return;
    const timer = setInterval(() => setAt((old) => Math.min(end, old + STEP_MS / 1000)), STEP_MS);
    return () => clearInterval(timer);
  }, [isPlaying, end]);
  useEffect(() => {
    if (at >= end) setPlaying(false);
  }, [at, end]);
  const play = () => {
    if (!isPlaying && at >= end) setAt(0);
    setPlaying(!isPlaying);
  };
  return (
    <section class="call">
      <header>
        <h1>{showUnseen(log.agent || name)}</h1>
        <p class="quiet">
          <a href={makeHref(["calls"])}>all calls</a> · recording {showUnseen(name)}, {formatDuration(end)}
        </p>
      </header>
      <Waveforms
        {...{ caller, agent }}
        marks={log.marks}
        getEnd={() => at * 1000}
        spanMs={Math.max(1000, end * 1000)}
        isLive={false}
      />
      <div class="slider">
        <button type="button" onClick={play}>
          {isPlaying ? "Pause" : "Play"}
        </button>
        <label class="visually-hidden" for="replay-at">
          Time
        </label>
        <input
          id="replay-at"
          type="range"
          min={0}
          max={end}
          step={0.05}
          value={at}
          onInput={(event) => setAt(Number(event.currentTarget.value))}
        />
        <output for="replay-at">{formatDuration(at)}</output>
      </div>
      <Latency log={log} />
      <div class="call-columns">
        <Speeches speeches={log.speeches} />
        <Marks marks={log.marks} />
      </div>
    </section>
  );
}

function measure(messages: RecordedMessage[]): { caller: Levels; agent: Levels } {
  const [caller, agent] = [new Levels(), new Levels()];
  for (const { at, audio, message } of messages) {
    if (audio !== null) (audio.who === "caller" ? caller : agent).add(audio.samples, at * 1000);
    else if (message.type === "audio_interrupted") agent.cut(at * 1000);
  }
  return { caller, agent };
}
