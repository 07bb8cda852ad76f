/** A run as it was after a step: conversation, state, workspace, what the step changed, and a fork from there. */

import { useRef } from "preact/hooks";
import { segment } from "../api/client";
import { useQuery } from "../api/query";
import { mayDo, type RunEvent, type RunInfo, type RunStepView } from "../api/types";
import { Code, Loading, Problem } from "../parts/basic";
import { Difference } from "../parts/difference";
import { addUsage, describeUsage } from "../parts/run_words";
import { Transcript } from "../parts/transcript";
import { replaceQuery, useRoute } from "../router";
import { useServer } from "../state/server";
import { formatDuration } from "../text";
import { RunFork } from "./run_fork";
import { StepWorkspace } from "./step_workspace";

const TABS = ["event", "conversation", "changes", "state", "workspace", "fork"] as const;
type Tab = (typeof TABS)[number];

export function StepPanel({ run, at, events }: { run: RunInfo; at: number; events: readonly RunEvent[] }) {
  const route = useRoute();
  const mayFork = mayDo(useServer(), "user");
  const tab = TABS.find((one) => one === route.query.tab) ?? "event";
  const path = `/runs/${segment(run.run_id)}/step`;
  const now = useQuery<RunStepView>(tab === "event" ? null : path, { at });
  const usage = addUsage(events.slice(0, at));
  const needsBefore = (tab === "changes" || tab === "workspace") && at > 1;
  const before = useQuery<RunStepView>(needsBefore ? path : null, { at: at - 1 });
  const isReady = now.data !== null && (!needsBefore || before.data !== null);
  // While the slider moves, the step before stays on the page: nothing jumps.
  const shown = useRef<{ step: RunStepView; before: RunStepView | null } | null>(null);
  if (now.data !== null && isReady) shown.current = { step: now.data, before: before.data };
  return (
    <>
      <p class="quiet step-usage">
        Up to step {at}: {describeUsage(usage)}, {formatDuration((events[at - 1]?.at ?? 0) - (events[0]?.at ?? 0))}
      </p>
      <div class="tabs" role="tablist" aria-label="Step">
        {TABS.filter((one) => one !== "fork" || mayFork).map((one) => (
          <button
            key={one}
            type="button"
            role="tab"
            aria-selected={tab === one}
            onClick={() => replaceQuery({ tab: one === "event" ? null : one })}
          >
            {one}
          </button>
        ))}
      </div>
      <div role="tabpanel" aria-label={tab} class={isReady || tab === "event" ? "tab-panel" : "tab-panel stale"}>
        {tab === "event" ? (
          <Code value={events[at - 1]} label="event" />
        ) : (now.problem ?? before.problem) !== null ? (
          <Problem problem={now.problem ?? before.problem} />
        ) : shown.current === null ? (
          <Loading />
        ) : (
          <Content tab={tab} run={run} {...shown.current} />
        )}
      </div>
    </>
  );
}

interface ContentProps {
  tab: Tab;
  step: RunStepView;
  before: RunStepView | null;
  run: RunInfo;
}

function Content({ tab, step, before, run }: ContentProps) {
  switch (tab) {
    case "conversation":
      return <Transcript items={step.run.items.map((one) => one.item)} />;
    case "changes":
      return <Changes step={step} before={before} />;
    case "workspace":
      return <StepWorkspace step={step} before={before} sessionId={run.session_id} />;
    case "fork":
      return <RunFork key={step.run.step} run={run} step={step} />;
    default:
      return <Code value={step.run} label="state" />;
  }
}

/** The output and the calls of the step, and then every field that it changed. */
function Changes({ step, before }: { step: RunStepView; before: RunStepView | null }) {
  if (before === null) return <p class="quiet">This is the first step.</p>;
  const added = step.run.items.slice(before.run.items.length).map((one) => one.item);
  return (
    <>
      {added.length > 0 && <Transcript items={added} />}
      <h3>Every field that changed</h3>
      <Difference before={strip(before)} after={strip(step)} label="Changes of this step" />
    </>
  );
}

/** The number of the step differs always, and says nothing. */
function strip({ run, workspace }: RunStepView) {
  const { step: _step, steps: _steps, ...rest } = run;
  return { ...rest, workspace };
}
