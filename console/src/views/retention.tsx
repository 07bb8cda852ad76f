/** Settings for operators: the sandbox of workers, and what is deleted because it is old. */

import { useState } from "preact/hooks";
import { post } from "../api/client";
import { useQuery } from "../api/query";
import type { SandboxInfo } from "../api/types";
import { Action, Problem } from "../parts/basic";
import { formatCount } from "../text";
import { Sandbox } from "./workers";

const DAY = 86_400;

export function Sandboxes() {
  const { data, problem } = useQuery<SandboxInfo[]>("/workers/sandbox");
  return (
    <>
      <h2>Sandbox</h2>
      {problem !== null && <Problem problem={problem} />}
      {data?.length === 0 && <p class="quiet">No workers run in this process.</p>}
      {data?.map((one) => (
        <Sandbox key={one.pool} sandbox={one} />
      ))}
    </>
  );
}

interface RunReport {
  deleted: string[];
  kept: number;
  shared: string[];
}

interface WorkspaceReport {
  dropped: number;
  kept: number;
}

export function Retention() {
  const [days, setDays] = useState(90);
  const [keep, setKeep] = useState(3);
  const [report, setReport] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const pruneRuns = async () => {
    if (!confirm(`Delete all runs that ended more than ${days} days ago, with their events and approvals?`)) return;
    const { deleted, kept, shared } = await post<RunReport>("/runs/prune", { older_than: days * DAY });
    const rest = shared.length > 0 ? `; ${shared.length} are kept because runs were forked from them` : "";
    setReport(`${formatCount(deleted.length)} runs were deleted, ${formatCount(kept)} are kept${rest}.`);
  };
  const pruneWorkspaces = async () => {
    const { dropped, kept } = await post<WorkspaceReport>("/workspaces/prune", { keep });
    setReport(`${formatCount(dropped)} checkpoints were dropped, ${formatCount(kept)} are kept.`);
  };
  return (
    <>
      <h2>Retention</h2>
      <p class="quiet">
        Nothing is deleted by itself. Sessions stay until they are deleted; <code>standfast runs prune</code> and{" "}
        <code>standfast workspaces prune</code> do the same from a timer.
      </p>
      <div class="retention">
        <label>
          Runs that ended more than{" "}
          <input type="number" min={0} value={days} onInput={(event) => setDays(readCount(event))} /> days ago
        </label>
        <Action kind="danger" act={pruneRuns} onProblem={setProblem}>
          Delete them
        </Action>
        <label>
          Checkpoints of workspaces, all but the latest{" "}
          <input type="number" min={1} value={keep} onInput={(event) => setKeep(Math.max(1, readCount(event)))} />
        </label>
        <Action act={pruneWorkspaces} onProblem={setProblem}>
          Drop them
        </Action>
      </div>
      {report && <p role="status">{report}</p>}
      {problem !== null && <Problem problem={problem} />}
    </>
  );
}

function readCount(event: Event & { currentTarget: HTMLInputElement }): number {
  return Math.max(0, Math.trunc(Number(event.currentTarget.value)) || 0);
}
