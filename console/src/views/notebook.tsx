/** The notebook of one session: cells in its variables and files, beside those of its runs. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, post, segment } from "../api/client";
import { useQuery } from "../api/query";
import { type CellInfo, mayDo, type SessionInfo, type Workspace } from "../api/types";
import { Action, Age, Empty, Loading, Problem, Status } from "../parts/basic";
import { OutputView } from "../parts/output_view";
import { makeHref, type Route } from "../router";
import { isOpen, type KnownCell, useCells, useOutputs, useWholeCell } from "../state/cells";
import { useServer } from "../state/server";
import { formatDuration, showUnseen } from "../text";
import { WorkspacePanel } from "./workspace_panel";

const OFTEN = 1000;
const SELDOM = 5000;

export function NotebookView({ sessionId, route }: { sessionId: string; route: Route }) {
  const info = useServer();
  const { cells, problem, refresh } = useCells(sessionId);
  const path = `/sessions/${segment(sessionId)}`;
  const [every, setEvery] = useState(SELDOM);
  const workspace = useQuery<Workspace>(`${path}/workspace`, {}, every);
  const isUnsaved = workspace.data !== null && workspace.data.pending.length > 0;
  // A workspace is saved soon after a cell; others may change it, too.
  useEffect(() => setEvery(isUnsaved ? OFTEN : SELDOM), [isUnsaved]);
  const mayRun = info?.runs_python === true && mayDo(info, "user");
  const ended = cells?.filter((one) => !isOpen(one.info)).length ?? 0;
  useEffect(() => {
    if (ended > 0) workspace.refresh();
  }, [ended]);
  const changed = () => {
    refresh();
    workspace.refresh();
  };
  if (cells === null) {
    if (!isMissing(problem)) return problem === null ? <Loading /> : <Problem problem={problem} />;
    return <NoSession sessionId={sessionId} mayRun={mayRun} refresh={changed} />;
  }
  return (
    <section class="notebook">
      <Heading {...{ sessionId, cells, mayRun, workspace: workspace.data, refresh: changed }} />
      <div class="notebook-columns">
        <div class="cells">
          {cells.length === 0 && <NoCells mayRun={mayRun} />}
          {cells.map((one) => (
            <CellView key={one.info.cell_id} cell={one} mayRun={mayRun} refresh={refresh} />
          ))}
          {mayRun && <NewCell sessionId={sessionId} refresh={refresh} />}
        </div>
        <WorkspacePanel
          sessionId={sessionId}
          route={route}
          current={workspace.data}
          mayChange={mayRun}
          problem={isMissing(workspace.problem) ? null : workspace.problem}
          refresh={changed}
        />
      </div>
    </section>
  );
}

const isMissing = (problem: unknown) => problem instanceof ApiError && problem.status === 404;

/** A notebook of a session that does not exist yet. */
function NoSession({ sessionId, mayRun, refresh }: { sessionId: string; mayRun: boolean; refresh(): void }) {
  const [problem, setProblem] = useState<unknown>(null);
  const create = async () => {
    await post<SessionInfo>("/sessions", { session_id: sessionId });
    refresh();
  };
  return (
    <Empty title={`There is no session ${showUnseen(sessionId)}, or you may not see it.`}>
      {mayRun && (
        <Action kind="primary" act={create} onProblem={setProblem}>
          Create it
        </Action>
      )}
      {problem !== null && <Problem problem={problem} />}
    </Empty>
  );
}

function NoCells({ mayRun }: { mayRun: boolean }) {
  return (
    <Empty title="No cells yet.">
      <p>
        {mayRun
          ? "Run Python below: it sees the variables and files of this session, and so do the calls of its agents. "
          : "You can read variables, files and versions. "}
        Calls of agents are shown in their runs.
      </p>
    </Empty>
  );
}

interface HeadingProps {
  sessionId: string;
  cells: KnownCell[];
  workspace: Workspace | null;
  mayRun: boolean;
  refresh(): void;
}

function Heading({ sessionId, cells, workspace, mayRun, refresh }: HeadingProps) {
  const [problem, setProblem] = useState<unknown>(null);
  const [note, setNote] = useState("");
  const [isAsking, setAsking] = useState(false);
  const running = cells.find((one) => isOpen(one.info) && one.info.status !== "queued") ?? null;
  const interrupt = async () => {
    if (running === null) return;
    const { state, reason } = await interruptCell(running.info);
    setNote(state === "lost" ? `The worker has ended: ${reason}. Variables are as they were saved last.` : "");
    refresh();
  };
  return (
    <header>
      <h1>
        {showUnseen(sessionId)}
        <Status status={running === null ? "idle" : running.info.status} />
      </h1>
      <p class="quiet">
        {workspace === null ? "nothing saved yet" : `version ${workspace.version}`} ·{" "}
        <a href={makeHref(["sessions", sessionId])}>its conversation</a> ·{" "}
        <a href={makeHref(["runs"], { session: sessionId })}>its runs</a>
      </p>
      {mayRun && (
        <div class="actions">
          <Action
            act={interrupt}
            onProblem={setProblem}
            disabled={running === null}
            title="Stop the cell; keep variables"
          >
            Interrupt
          </Action>
          <button type="button" aria-expanded={isAsking} onClick={() => setAsking(!isAsking)}>
            Restart…
          </button>
          {note && (
            <span role="status" class="quiet">
              {showUnseen(note)}
            </span>
          )}
        </div>
      )}
      {problem !== null && <Problem problem={problem} />}
      {isAsking && <Restart {...{ sessionId, workspace, refresh }} close={() => setAsking(false)} />}
    </header>
  );
}

interface Interrupted {
  stopped: boolean;
  state: "preserved" | "lost";
  reason: string;
}

const interruptCell = ({ session_id, cell_id }: CellInfo) =>
  post<Interrupted>(`/sessions/${segment(session_id)}/workspace/cells/${segment(cell_id)}/interrupt`);

interface RestartProps {
  sessionId: string;
  workspace: Workspace | null;
  refresh(): void;
  close(): void;
}

/** Replace the worker, after a look at what that loses. */
function Restart({ sessionId, workspace, refresh, close }: RestartProps) {
  const [problem, setProblem] = useState<unknown>(null);
  const unkept = Object.entries(workspace?.unkept ?? {});
  const restart = async () => {
    await post(`/sessions/${segment(sessionId)}/workspace/restart`);
    refresh();
    close();
  };
  return (
    <div class="restart" role="group" aria-label="Restart">
      <p>
        A new worker gets the variables and files of{" "}
        {workspace === null ? "an empty workspace" : `version ${workspace.version}`}. Open files and connections,
        threads, child processes and changes of the process, such as its environment, are lost.
      </p>
      {unkept.length > 0 && (
        <>
          <p>These could not be saved, and are lost, too:</p>
          <ul>
            {unkept.map(([name, reason]) => (
              <li key={name}>
                <code>{showUnseen(name)}</code>: {showUnseen(reason)}
              </li>
            ))}
          </ul>
        </>
      )}
      <div class="actions">
        <Action kind="danger" act={restart} onProblem={setProblem}>
          Restart
        </Action>
        <button type="button" onClick={close}>
          Cancel
        </button>
      </div>
      {problem !== null && <Problem problem={problem} />}
    </div>
  );
}

interface CellProps {
  cell: KnownCell;
  mayRun: boolean;
  refresh(): void;
}

function CellView({ cell, mayRun, refresh }: CellProps) {
  const { isForgotten } = cell;
  const info = useWholeCell(cell.info);
  const outputs = useOutputs(info, refresh);
  const [problem, setProblem] = useState<unknown>(null);
  const path = `/sessions/${segment(info.session_id)}/workspace/cells/${segment(info.cell_id)}/input`;
  const answer = (inputId: string, data: string, eof: boolean) => post(path, { input_id: inputId, data, eof });
  const seconds = Number(info.result?.execution_time ?? 0);
  return (
    <article class={`cell cell-${info.status}`} aria-label={`Cell by ${info.subject}`}>
      <div class="cell-head">
        {info.status !== "done" && <Status status={info.status} />}
        <span class="quiet">
          {showUnseen(info.subject)}, <Age at={info.started_at} />
          {seconds > 0 && ` · ${formatDuration(seconds)}`}
          {isForgotten && " · of a server that has ended"}
        </span>
        {mayRun && info.status === "queued" && (
          <Action act={() => interruptCell(info).then(refresh)} onProblem={setProblem}>
            Withdraw
          </Action>
        )}
      </div>
      <pre class="cell-source" tabIndex={0} role="region" aria-label="Code">
        {showUnseen(info.source)}
      </pre>
      <div class="cell-outputs" aria-live="polite">
        {outputs.map((one, index) => (
          <OutputView key={index} output={one} answer={mayRun && isOpen(info) && !isForgotten ? answer : null} />
        ))}
      </div>
      {info.detail && <p class="output-error">{showUnseen(info.detail)}</p>}
      {info.notes.map((note) => (
        <p class="quiet" key={note}>
          {showUnseen(note)}
        </p>
      ))}
      {problem !== null && <Problem problem={problem} />}
    </article>
  );
}

function NewCell({ sessionId, refresh }: { sessionId: string; refresh(): void }) {
  const [code, setCode] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const box = useRef<HTMLTextAreaElement>(null);
  const run = async () => {
    setProblem(null);
    try {
      const cell = { code, timeout: 3600, allow_input: true };
      await post<CellInfo>(`/sessions/${segment(sessionId)}/workspace/cells`, cell);
      setCode("");
      refresh();
      box.current?.focus();
    } catch (found) {
      setProblem(found);
    }
  };
  const press = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || !(event.shiftKey || event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (code.trim()) void run();
  };
  return (
    <div class="new-cell">
      <label for="code">Python</label>
      <textarea
        ref={box}
        id="code"
        class="mono"
        rows={Math.min(24, Math.max(3, code.split("\n").length + 1))}
        spellcheck={false}
        autocapitalize="off"
        value={code}
        onInput={(event) => setCode(event.currentTarget.value)}
        onKeyDown={press}
      />
      <div class="actions">
        <button type="button" class="primary" disabled={!code.trim()} onClick={run}>
          Run
        </button>
        <span class="quiet">
          <kbd>Shift</kbd> <kbd>Enter</kbd>
        </span>
      </div>
      {problem !== null && <Problem problem={problem} />}
    </div>
  );
}
