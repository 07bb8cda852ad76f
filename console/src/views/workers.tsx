/** Workers: the pools of this process, their workers, and the workspaces that outlive them. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { useQuery } from "../api/query";
import {
  type ListedSession,
  mayDo,
  type Page,
  type PoolInfo,
  type SandboxInfo,
  type WorkerInfo,
  type WorkspaceRecord,
} from "../api/types";
import { Age, Empty, Loading, Problem } from "../parts/basic";
import { makeHref, navigate, type Route } from "../router";
import { useServer } from "../state/server";
import { formatBytes, formatCount, formatDuration, showUnseen, summarize } from "../text";

const REFRESH = 2000;

export function WorkersView({ route }: { route: Route }) {
  const info = useServer();
  const isOperator = mayDo(info, "operator");
  return (
    <section class="page">
      <h1>Workers</h1>
      <OpenWorkspace />
      {info && !info.runs_python && (
        <p class="quiet">
          Cells cannot be run here: start the server with <code>standfast serve --python</code>. Variables, files and
          versions can be read all the same.
        </p>
      )}
      {isOperator ? (
        <>
          <Pools />
          <WorkerTable />
          <Workspaces after={route.query.after ?? null} />
        </>
      ) : (
        info && <RecentSessions />
      )}
    </section>
  );
}

function OpenWorkspace() {
  const [name, setName] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    if (name.trim()) navigate(["workers", name.trim()]);
  };
  return (
    <form class="search" onSubmit={submit}>
      <input
        type="search"
        aria-label="Session"
        placeholder="id of a session"
        value={name}
        onInput={(event) => setName(event.currentTarget.value)}
      />
      <button type="submit" disabled={!name.trim()}>
        Open its notebook
      </button>
    </form>
  );
}

function Pools() {
  const { data, problem } = useQuery<PoolInfo[]>("/workers", {}, REFRESH);
  const sandboxes = useQuery<SandboxInfo[]>("/workers/sandbox");
  if (problem !== null) return <Problem problem={problem} />;
  if (data === null) return <Loading />;
  if (data.length === 0) {
    return (
      <Empty title="No pool in this process.">
        <p>
          A pool keeps workers ready: sandboxed processes that run Python for agents with a Python tool, and for people
          with <code>standfast serve --python</code>.
        </p>
      </Empty>
    );
  }
  return (
    <>
      <h2>Pools</h2>
      {data.map((pool, index) => (
        <Pool key={index} pool={pool} sandbox={sandboxes.data?.find((one) => one.pool === index) ?? null} />
      ))}
    </>
  );
}

const PARTS = ["leased", "starting", "idle"] as const;

function Pool({ pool, sandbox }: { pool: PoolInfo; sandbox: SandboxInfo | null }) {
  const total = pool.leased + pool.starting + pool.idle;
  const { breaker, metrics } = pool;
  const started = metrics.sessions_started ?? metrics.acquisition_success ?? 0;
  return (
    <div class="pool">
      <div class="pool-bar" aria-hidden="true">
        {PARTS.map((part) => (
          <i key={part} class={`pool-${part}`} style={{ flexGrow: pool[part] }} />
        ))}
      </div>
      <p>
        <strong>{formatCount(pool.leased)}</strong> in use · <strong>{formatCount(pool.starting)}</strong> starting ·{" "}
        <strong>{formatCount(pool.idle)}</strong> idle
        {pool.waiting > 0 && (
          <>
            {" "}
            · <strong>{formatCount(pool.waiting)}</strong> calls wait for one
          </>
        )}
        {total === 0 && <span class="quiet"> · workers start when they are needed</span>}
        {started > 0 && <span class="quiet"> · {formatCount(started)} given out so far</span>}
      </p>
      {breaker.blocked_for > 0 && (
        <p class="why">
          {formatCount(breaker.failures)} starts failed one after the other: the next is tried in{" "}
          {formatDuration(breaker.blocked_for)}. The log of the server says why.
        </p>
      )}
      {sandbox && <Sandbox sandbox={sandbox} />}
    </div>
  );
}

/** The sandbox of a pool in words. */
export function Sandbox({ sandbox }: { sandbox: SandboxInfo }) {
  const reasons = Object.entries(sandbox.reasons);
  return (
    <div class="sandbox">
      <p>
        Sandbox:{" "}
        <span class={sandbox.level === null || sandbox.level === "plain" ? "tag warn" : "tag"}>
          {sandbox.level ?? "none: no worker starts"}
        </span>{" "}
        <span class="quiet">{DESCRIPTIONS[sandbox.level ?? ""] ?? ""}</span>
      </p>
      {sandbox.notes.map((note) => (
        <p class="quiet" key={note}>
          {showUnseen(note)}
        </p>
      ))}
      {reasons.map(([level, reason]) => (
        <p class="quiet" key={level}>
          Not {level}: {showUnseen(reason)}
        </p>
      ))}
    </div>
  );
}

const DESCRIPTIONS: Record<string, string> = {
  namespaces: "no network, no other processes and no files but those that it is given",
  locked: "no files but those that it is given, and few system calls",
  plain: "nothing but limits separates the code from this machine",
};

function WorkerTable() {
  const { data, problem } = useQuery<WorkerInfo[]>("/workers/sessions", {}, REFRESH);
  if (problem !== null) return <Problem problem={problem} />;
  if (data === null || data.length === 0) return null;
  return (
    <table class="list">
      <thead>
        <tr>
          <Columns names={["State", "Worker", "Started", "Used", "Cells", "Errors", "Memory", "Processor"]} />
        </tr>
      </thead>
      <tbody>
        {data.map((one) => (
          <tr key={one.worker_id}>
            <td>
              <span class={`status ${one.place === "leased" ? "status-running" : ""}`}>
                {one.place === "leased" ? "in use" : "idle"}
              </span>{" "}
              {one.state !== "idle" && <span class="quiet">{one.state}</span>}
            </td>
            <td class="mono">{summarize(one.worker_id, 24)}</td>
            <td>
              <Age at={one.created_at} />
            </td>
            <td>
              <Age at={one.last_used_at} />
            </td>
            <td class="number">{formatCount(one.executions)}</td>
            <td class="number">{formatCount(one.errors)}</td>
            <td class="number">{one.memory_bytes > 0 ? formatBytes(one.memory_bytes) : "–"}</td>
            <td class="number">{Math.round(one.cpu_percent)} %</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Columns({ names }: { names: string[] }) {
  return (
    <>
      {names.map((name) => (
        <th scope="col" key={name}>
          {name}
        </th>
      ))}
    </>
  );
}

function Workspaces({ after }: { after: string | null }) {
  const { data, problem } = useQuery<Page<WorkspaceRecord>>("/workspaces", { after, limit: 50 }, REFRESH);
  return (
    <>
      <h2>Workspaces</h2>
      {problem !== null && <Problem problem={problem} />}
      {data?.items.length === 0 && <NoWorkspaces />}
      {data !== null && data.items.length > 0 && (
        <table class="list">
          <thead>
            <tr>
              <Columns names={["Of", "Version", "Changed"]} />
            </tr>
          </thead>
          <tbody>
            {data.items.map((one) => (
              <tr key={one.key}>
                <td>
                  <WorkspaceName name={one.key} />
                </td>
                <td class="number">{formatCount(one.version)}</td>
                <td>
                  <Age at={one.updated_at} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {data?.next && (
        <p>
          <a href={makeHref(["workers"], { after: data.next })}>more workspaces</a>
        </p>
      )}
    </>
  );
}

function WorkspaceName({ name }: { name: string }): ComponentChildren {
  const shown = summarize(name.replace(/^session:/, ""), 60);
  if (name.startsWith("session:")) return <a href={makeHref(["workers", name.slice(8)])}>{shown}</a>;
  if (name.startsWith("run:")) return <a href={makeHref(["runs", name.slice(4)])}>{shown}</a>;
  return shown;
}

function NoWorkspaces() {
  return (
    <Empty title="No workspaces yet.">
      <p>
        A workspace is what a worker holds: variables and files. It is stored with the session, outlives the worker, and
        every call of Python makes a version that can be restored.
      </p>
    </Empty>
  );
}

/** For those who may not see all workspaces: any of their sessions can have one. */
function RecentSessions() {
  const { data, problem } = useQuery<Page<ListedSession>>("/sessions", { limit: 20 }, REFRESH);
  return (
    <>
      <h2>Your sessions</h2>
      {problem !== null && <Problem problem={problem} />}
      {data?.items.length === 0 && <NoWorkspaces />}
      <ul class="latest">
        {data?.items.map((one) => (
          <li key={one.session_id}>
            <a href={makeHref(["workers", one.session_id])}>{summarize(one.session_id, 60)}</a>{" "}
            <Age at={one.updated_at} />
          </li>
        ))}
      </ul>
    </>
  );
}
