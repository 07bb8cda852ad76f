/** One run: its timeline, live, and the run as it was at any step. */

import { useEffect, useRef, useState } from "preact/hooks";
import { post, remove, segment } from "../api/client";
import { useQuery } from "../api/query";
import { type JsonObject, mayDo, type RunInfo, type RunOutcome, type RunStepView } from "../api/types";
import { Action, Age, Code, Loading, Missing, Problem, Status } from "../parts/basic";
import { Markdown } from "../parts/markdown";
import { addUsage, describeUsage } from "../parts/run_words";
import { Timeline } from "../parts/timeline";
import { Transcript } from "../parts/transcript";
import { makeHref, navigate, type Route, replaceQuery } from "../router";
import { type RunEvents, useRunEvents } from "../state/run_events";
import { useServer } from "../state/server";
import { useSettled } from "../state/settled";
import { formatCount, formatDuration, showUnseen } from "../text";
import { StepPanel } from "./step_panel";

const ENDED = ["completed", "failed", "cancelled"];

export function RunView({ runId, route }: { runId: string; route: Route }) {
  const [round, setRound] = useState(0);
  const live = useRunEvents(runId, round);
  const info = useQuery<RunInfo>(`/runs/${segment(runId)}`);
  const outcome = useQuery<RunOutcome>(`/runs/${segment(runId)}/outcome`);
  const last = live.events.at(-1)?.seq ?? 0;
  // What the journal says is new; the answers about the run as a whole are read again, once for many events.
  const settled = useSettled(last);
  useEffect(() => {
    if (settled === 0) return;
    info.refresh();
    outcome.refresh();
  }, [settled]);
  const follow = () => {
    setRound((old) => old + 1);
    info.refresh();
    outcome.refresh();
  };
  if (info.data === null) {
    if (info.problem === null) return <Loading />;
    return <Missing problem={info.problem} retry={info.refresh} list="runs" />;
  }
  const run = info.data;
  const step = Number(route.query.at);
  const at = Number.isInteger(step) && step >= 1 && step <= last ? step : null;
  return (
    <section class="run">
      <RunHeading run={run} live={live} />
      <WhyItWaits run={run} outcome={outcome.data} />
      <RunActions run={run} follow={follow} />
      {live.stream.kind === "refused" && <Problem problem={live.stream.problem} />}
      <div class="run-columns">
        <div class="run-timeline">
          <Slider last={last} at={at} />
          <Timeline events={live.events} at={at} choose={(chosen) => replaceQuery({ at: chosen })} />
          <Words live={live} />
        </div>
        <div class="run-detail">
          {at === null ? (
            <Result run={run} outcome={outcome.data} last={settled} />
          ) : (
            <StepPanel run={run} at={at} events={live.events} />
          )}
        </div>
      </div>
    </section>
  );
}

function RunHeading({ run, live }: { run: RunInfo; live: RunEvents }) {
  const facts = [
    `${formatCount(run.steps)} steps`,
    describeUsage(addUsage(live.events)),
    formatDuration(run.updated_at - run.created_at),
  ];
  return (
    <header>
      <h1>
        {showUnseen(run.agent || "encrypted run")} <Status status={run.status} />
      </h1>
      <p class="quiet">
        {showUnseen(run.run_id)} · started <Age at={run.created_at} /> · {facts.join(" · ")}
        {run.session_id && (
          <>
            {" · "}
            <a href={makeHref(["sessions", run.session_id])}>session {showUnseen(run.session_id)}</a>
          </>
        )}
        {run.parent && (
          <>
            {" · forked from "}
            <a href={makeHref(["runs", run.parent])}>{showUnseen(run.parent)}</a>
          </>
        )}
        {live.stream.kind === "lost" && " · connection lost, trying again"}
      </p>
    </header>
  );
}

/** Why a run does not continue, in plain words. */
function WhyItWaits({ run, outcome }: { run: RunInfo; outcome: RunOutcome | null }) {
  const waiting = outcome?.approvals.filter((one) => one.status === "pending") ?? [];
  if (run.status === "waiting" && waiting.length > 0) {
    return (
      <p class="why">
        Waits for a decision about{" "}
        {waiting.map((one, index) => (
          <span key={one.id}>
            {index > 0 && ", "}
            <a href={makeHref(["approvals", one.id])}>{showUnseen(one.tool)}</a>
            {one.kind === "uncertain" && " (it may have happened)"}
          </span>
        ))}
        .
      </p>
    );
  }
  if (run.reason) {
    const verb = run.status === "waiting" ? "Blocked" : run.status === "failed" ? "Failed" : "Stopped";
    return (
      <p class="why">
        {verb}: {showUnseen(run.reason.message)} <span class="quiet">({showUnseen(run.reason.code)})</span>
      </p>
    );
  }
  if (run.status === "queued")
    return (
      <p class="why">
        Waits for its turn: an earlier run of its session has not ended, or no process has taken it yet.
      </p>
    );
  return null;
}

function RunActions({ run, follow }: { run: RunInfo; follow(): void }) {
  const [problem, setProblem] = useState<unknown>(null);
  const server = useServer();
  if (!mayDo(server, "user")) return null;
  const hasEnded = ENDED.includes(run.status);
  const act = (verb: string, body: object) => async () => {
    await post<RunInfo>(`/runs/${segment(run.run_id)}/${verb}`, body);
    follow();
  };
  const erase = async () => {
    if (!confirm("Delete this run with its events and approvals? This cannot be undone.")) return;
    await remove(`/runs/${segment(run.run_id)}`);
    navigate(["runs"]);
  };
  return (
    <div class="actions">
      {!hasEnded && (
        <>
          <Action
            act={act("cancel", { mode: "after_turn" })}
            onProblem={setProblem}
            title="Stop at the end of its turn"
          >
            Cancel after this turn
          </Action>
          <Action kind="danger" act={act("cancel", { mode: "immediate" })} onProblem={setProblem}>
            Cancel now
          </Action>
        </>
      )}
      {(run.status === "failed" || run.status === "cancelled" || (run.status === "waiting" && run.reason !== null)) && (
        <Action kind="primary" act={act("resume", {})} onProblem={setProblem} title="Continue where it stopped">
          {run.status === "failed" ? "Retry" : "Resume"}
        </Action>
      )}
      {run.status === "waiting" && run.reason !== null && (
        <Action act={act("resume", { accept_changes: true })} onProblem={setProblem}>
          Resume with the current code
        </Action>
      )}
      {hasEnded && (
        <Action kind="danger" act={erase} onProblem={setProblem}>
          Delete
        </Action>
      )}
      {problem !== null && <Problem problem={problem} />}
    </div>
  );
}

function Slider({ last, at }: { last: number; at: number | null }) {
  return (
    <div class="slider">
      <label for="step">Step</label>
      <input
        id="step"
        type="range"
        min={1}
        max={Math.max(1, last)}
        value={at ?? last}
        onInput={(event) => replaceQuery({ at: event.currentTarget.value })}
      />
      <output for="step">
        {at ?? last} of {last}
      </output>
      <button type="button" class="link" disabled={at === null} onClick={() => replaceQuery({ at: null })}>
        latest
      </button>
    </div>
  );
}

/** The words of a model that is answering. The complete answer follows as an event. */
function Words({ live }: { live: RunEvents }) {
  if (live.words === "") return null;
  return (
    <div class="words" role="status" aria-label="Answer so far">
      {live.missed && "… "}
      {showUnseen(live.words.slice(-4000))}
    </div>
  );
}

/** The run as it is now: its result, and what was said. */
function Result({ run, outcome, last }: { run: RunInfo; outcome: RunOutcome | null; last: number }) {
  const { data } = useLatestStep(run, last);
  const output = outcome?.final_output ?? null;
  return (
    <>
      {output !== null && (
        <>
          <h3>Result</h3>
          {typeof output === "string" ? <Markdown text={output} /> : <Code value={output} label="result" />}
        </>
      )}
      <h3>Conversation</h3>
      {data !== null && <Transcript items={listItems(data)} />}
      <p class="quiet">Choose a step to see the run as it was then, and to fork it.</p>
    </>
  );
}

/** The run as it is: the step before stays until the newer one is here. */
function useLatestStep(run: RunInfo, last: number): { data: RunStepView | null } {
  const path = run.locked || last === 0 ? null : `/runs/${segment(run.run_id)}/step`;
  const { data } = useQuery<RunStepView>(path, { at: last });
  const shown = useRef<RunStepView | null>(null);
  if (data !== null) shown.current = data;
  return { data: shown.current };
}

/** Its items begin with its input, once it has begun. */
function listItems({ run }: RunStepView): JsonObject[] {
  if (run.items.length > 0) return run.items.map((one) => one.item);
  return typeof run.input === "string" ? [{ role: "user", content: run.input }] : run.input;
}
