/** A call of another person, or of a page that was closed: read only, with the option to continue it here. */

import { useEffect, useState } from "preact/hooks";
import { post, remove, segment } from "../api/client";
import { follow, type StreamState } from "../api/events";
import { useQuery } from "../api/query";
import { type CallInfo, type JsonObject, mayDo } from "../api/types";
import { Action, Age, Empty, Loading, Problem, Status } from "../parts/basic";
import { makeHref, navigate } from "../router";
import { addToLog, type CallLog, EMPTY_LOG } from "../state/call_log";
import { LiveCall, liveCall } from "../state/live_call";
import { useServer } from "../state/server";
import { showUnseen, summarize } from "../text";
import { Decisions, Latency, Marks, Speeches } from "./call_parts";

const REFRESH = 2000;

export function WatchView({ callId }: { callId: string }) {
  const path = `/calls/${segment(callId)}`;
  const { data, problem } = useQuery<CallInfo>(path, {}, REFRESH);
  const [failure, setFailure] = useState<unknown>(null);
  const { log, stream } = useCallEvents(path);
  const server = useServer();
  if (data === null && log.lastNumber === 0) {
    if (problem === null) return <Loading />;
    return (
      <Empty title="This call is over, or another process has it.">
        <p>
          What was said is in its session. <a href={makeHref(["calls"])}>All calls</a>
        </p>
      </Empty>
    );
  }
  const hasEnded = log.ended !== null || stream.kind === "refused";
  const take = () => {
    liveCall.value?.hangUp();
    liveCall.set(new LiveCall(null, {}, callId));
    navigate(["calls", callId]);
  };
  const mayTake =
    data !== null && mayDo(server, "user") && (data.subject === server?.subject || mayDo(server, "operator"));
  return (
    <section class="call">
      <header>
        <h1>
          {showUnseen(data?.agent ?? log.agent)}{" "}
          {hasEnded ? (
            <span class="status">ended</span>
          ) : (
            <Status status={data?.connected === false ? "waiting" : "running"} />
          )}
        </h1>
        <p class="quiet">
          <a href={makeHref(["calls"])}>all calls</a> · you watch: nobody hears you
          {data && (
            <>
              {" "}
              · {showUnseen(data.subject)} calls, since <Age at={data.started_at} /> ·{" "}
              <a href={makeHref(["sessions", data.session_id])}>session {summarize(data.session_id, 40)}</a>
            </>
          )}
        </p>
      </header>
      {!hasEnded && mayTake && (
        <div class="actions">
          <button type="button" onClick={take} title="Its page, if it has one, is disconnected">
            Continue it here
          </button>
          <Action kind="danger" act={() => remove(path)} onProblem={setFailure}>
            End the call
          </Action>
        </div>
      )}
      {failure !== null && <Problem problem={failure} />}
      <Decisions
        waiting={hasEnded ? [] : log.waiting}
        decide={(call_id, decision) => post(`${path}/decide`, { type: "decide", call_id, decision })}
      />
      <Latency log={log} />
      <div class="call-columns">
        <Speeches speeches={log.speeches} />
        <Marks marks={log.marks} />
      </div>
    </section>
  );
}

function useCallEvents(path: string): { log: CallLog; stream: StreamState } {
  const [log, setLog] = useState(EMPTY_LOG);
  const [stream, setStream] = useState<StreamState>({ kind: "connecting" });
  useEffect(() => {
    const controller = new AbortController();
    let known = EMPTY_LOG;
    void follow(`${path}/events`, {
      signal: controller.signal,
      onState: setStream,
      onEvents: (events) => {
        for (const one of events) known = addToLog(known, JSON.parse(one.data) as JsonObject);
        setLog(known);
        if (known.ended !== null) controller.abort();
      },
    });
    return () => controller.abort();
  }, [path]);
  return { log, stream };
}
