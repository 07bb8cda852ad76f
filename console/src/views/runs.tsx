/** The list of runs, with filters, and a form that starts one. */

import { useState } from "preact/hooks";
import { post } from "../api/client";
import { useQuery } from "../api/query";
import { type AgentInfo, mayDo, type Page, RUN_STATUSES, type RunInfo } from "../api/types";
import { Action, Age, Empty, Loading, Problem, Status } from "../parts/basic";
import { makeHref, navigate, type Route } from "../router";
import { useServer } from "../state/server";
import { formatDuration, showUnseen, summarize } from "../text";

const REFRESH = 2000;
const PAGE_SIZE = 50;

export function RunsView({ route }: { route: Route }) {
  const { status, session, after } = route.query;
  const query = { status: status ?? null, session_id: session ?? null, after: after ?? null, limit: PAGE_SIZE };
  const { data, problem, refresh } = useQuery<Page<RunInfo>>("/runs", query, REFRESH);
  const mayStart = mayDo(useServer(), "user");
  return (
    <section class="page">
      <h1>Runs</h1>
      {mayStart && <NewRun />}
      <nav class="filters" aria-label="Filter by status">
        <a href={makeHref(["runs"], { session })} aria-current={status === undefined ? "true" : undefined}>
          all
        </a>
        {RUN_STATUSES.map((one) => (
          <a
            key={one}
            href={makeHref(["runs"], { status: one, session })}
            aria-current={status === one ? "true" : undefined}
          >
            {one}
          </a>
        ))}
        {session && (
          <span class="tag">
            session {summarize(session, 40)} <a href={makeHref(["runs"], { status })}>any</a>
          </span>
        )}
      </nav>
      {problem !== null && <Problem problem={problem} retry={refresh} />}
      {data === null ? problem === null && <Loading /> : <RunTable page={data} route={route} />}
    </section>
  );
}

function RunTable({ page, route }: { page: Page<RunInfo>; route: Route }) {
  if (page.items.length === 0) {
    return (
      <Empty title={route.query.status || route.query.session ? "No such runs." : "No runs yet."}>
        <p>
          A run is one execution of an agent. Start one above, with <code>POST /runs</code>, or in a program:{" "}
          <code>runtime.start(agent, input)</code>.
        </p>
      </Empty>
    );
  }
  return (
    <>
      <table class="list">
        <thead>
          <tr>
            <th scope="col">Status</th>
            <th scope="col">Run</th>
            <th scope="col">Agent</th>
            <th scope="col">Session</th>
            <th scope="col">Steps</th>
            <th scope="col">Started</th>
            <th scope="col">Lasted</th>
          </tr>
        </thead>
        <tbody>
          {page.items.map((run) => (
            <tr key={run.run_id}>
              <td>
                <Status status={run.status} />
              </td>
              <td>
                <a href={makeHref(["runs", run.run_id])}>{summarize(run.run_id, 30)}</a>
                {run.reason && <div class="invalid">{summarize(run.reason.message, 100)}</div>}
              </td>
              <td>{run.locked ? <span class="quiet">encrypted</span> : showUnseen(run.agent)}</td>
              <td>
                {run.session_id && <a href={makeHref(["sessions", run.session_id])}>{summarize(run.session_id, 30)}</a>}
              </td>
              <td class="number">{run.steps}</td>
              <td>
                <Age at={run.created_at} />
              </td>
              <td class="number">{formatDuration(run.updated_at - run.created_at)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {page.next && (
        <p>
          <a href={makeHref(["runs"], { ...route.query, after: page.next })}>older runs</a>
        </p>
      )}
    </>
  );
}

function NewRun() {
  const agents = useQuery<Page<AgentInfo>>("/agents");
  const names = agents.data?.items.map((one) => one.name) ?? [];
  const [agent, setAgent] = useState<string | null>(null);
  const [text, setText] = useState("");
  const [session, setSession] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const chosen = agent ?? names[0];
  const start = async () => {
    const body = { agent: chosen, input: text, ...(session.trim() && { session_id: session.trim() }) };
    const run = await post<RunInfo>("/runs", body);
    navigate(["runs", run.run_id]);
  };
  return (
    <details class="new">
      <summary>Start a run</summary>
      <div class="new-form">
        <label>
          Agent
          <select value={chosen ?? ""} onChange={(event) => setAgent(event.currentTarget.value)}>
            {names.map((one) => (
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
        <label class="wide">
          Input
          <textarea rows={2} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <Action kind="primary" act={start} onProblem={setProblem} disabled={!text.trim() || chosen === undefined}>
          Start
        </Action>
      </div>
      {problem !== null && <Problem problem={problem} />}
    </details>
  );
}
