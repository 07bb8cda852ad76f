/** Calls: speak with a realtime agent, watch the call of another person, replay a recording. */

import { useState } from "preact/hooks";
import { useQuery } from "../api/query";
import { type CallInfo, mayDo } from "../api/types";
import { Age, Empty, Loading, Problem, Status } from "../parts/basic";
import { makeHref, navigate, type Route } from "../router";
import { readRecording } from "../state/call_recorder";
import { LiveCall, liveCall } from "../state/live_call";
import { useServer } from "../state/server";
import { useStore } from "../state/store";
import { showUnseen, summarize } from "../text";
import { LiveCallView } from "./live_call";
import { ReplayView, recording } from "./replay";
import { WatchView } from "./watch_call";

const REFRESH = 2000;

export function CallsView({ route }: { route: Route }) {
  const id = route.parts[1];
  const live = useStore(liveCall);
  if (id === undefined) return <CallList />;
  if (id === "replay") return <ReplayView />;
  return live?.callId === id ? <LiveCallView call={live} /> : <WatchView key={id} callId={id} />;
}

function CallList() {
  const { data, problem } = useQuery<CallInfo[]>("/calls", {}, REFRESH);
  const info = useServer();
  return (
    <section class="page">
      <h1>Calls</h1>
      {info &&
        (info.realtime_agents.length > 0 ? (
          mayDo(info, "user") && <NewCall agents={info.realtime_agents} />
        ) : (
          <NoAgents />
        ))}
      <Replay />
      <h2>Under way</h2>
      {problem !== null && <Problem problem={problem} />}
      {data === null ? (
        problem === null && <Loading />
      ) : data.length === 0 ? (
        <p class="quiet">No calls in this process. Those of others appear here, and can be watched.</p>
      ) : (
        <CallTable calls={data} />
      )}
    </section>
  );
}

function NoAgents() {
  return (
    <Empty title="No realtime agents here.">
      <p>
        Define a <code>RealtimeAgent</code> in the file that <code>standfast serve</code> gets, or a function that
        returns a <code>RealtimeRunner</code>.
      </p>
    </Empty>
  );
}

function CallTable({ calls }: { calls: CallInfo[] }) {
  return (
    <table class="list">
      <thead>
        <tr>
          <th scope="col">State</th>
          <th scope="col">Call</th>
          <th scope="col">Agent</th>
          <th scope="col">Caller</th>
          <th scope="col">Began</th>
        </tr>
      </thead>
      <tbody>
        {calls.map((one) => (
          <tr key={one.call_id}>
            <td>
              <Status status={one.connected ? "running" : "waiting"} />
            </td>
            <td>
              <a href={makeHref(["calls", one.call_id])}>{summarize(one.call_id, 30)}</a>
            </td>
            <td>{showUnseen(one.agent)}</td>
            <td>{showUnseen(one.subject)}</td>
            <td>
              <Age at={one.started_at} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function NewCall({ agents }: { agents: string[] }) {
  const [agent, setAgent] = useState<string | null>(null);
  const [session, setSession] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const chosen = agent ?? agents[0] ?? "";
  const start = (isSpoken: boolean) => {
    liveCall.value?.hangUp();
    setProblem(null);
    const call = new LiveCall(chosen, { session_id: session.trim() || null }, null, (id) => navigate(["calls", id]));
    const stop = call.state.subscribe(() => {
      const state = call.state.value;
      if (state.kind === "ended" && call.callId === null) setProblem(`No call: ${state.reason}.`);
      if (state.kind === "open" && isSpoken) void call.speak();
      if (state.kind !== "connecting") stop();
    });
    liveCall.set(call);
  };
  return (
    <div class="new-form call-form">
      <label>
        Agent
        <select value={chosen} onChange={(event) => setAgent(event.currentTarget.value)}>
          {agents.map((one) => (
            <option key={one} value={one}>
              {showUnseen(one)}
            </option>
          ))}
        </select>
      </label>
      <label>
        Session
        <input
          type="text"
          placeholder="a new one"
          value={session}
          onInput={(event) => setSession(event.currentTarget.value)}
        />
      </label>
      <div class="actions wide">
        <button type="button" class="primary" onClick={() => start(true)}>
          Call with the microphone
        </button>
        <button type="button" onClick={() => start(false)}>
          Call and write
        </button>
      </div>
      {problem !== null && <Problem problem={problem} />}
    </div>
  );
}

function Replay() {
  const [problem, setProblem] = useState<unknown>(null);
  const open = async (event: Event & { currentTarget: HTMLInputElement }) => {
    const file = event.currentTarget.files?.[0];
    if (file === undefined) return;
    setProblem(null);
    try {
      recording.set({ name: file.name, messages: readRecording(await file.text()) });
      navigate(["calls", "replay"]);
    } catch (found) {
      setProblem(found);
    }
  };
  return (
    <p>
      <label class="upload">
        <span>Replay a recording</span>
        <input type="file" accept=".jsonl" onChange={open} />
      </label>{" "}
      <span class="quiet">one that you saved here, or that a model wrote with recording=</span>
      {problem !== null && <Problem problem={problem} />}
    </p>
  );
}
