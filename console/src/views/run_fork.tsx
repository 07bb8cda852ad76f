/** Start another run from a step: as it was, with another input, other outputs of its latest calls, or another agent. */

import { useState } from "preact/hooks";
import { post, segment } from "../api/client";
import { useQuery } from "../api/query";
import type { AgentInfo, JsonObject, Page, RunInfo, RunStepView } from "../api/types";
import { Action, Problem } from "../parts/basic";
import { readContent } from "../parts/items";
import { navigate } from "../router";
import { formatJson, showUnseen } from "../text";

export function RunFork({ run, step }: { run: RunInfo; step: RunStepView }) {
  const { input, step: at } = step.run;
  const given = typeof input === "string" ? input : formatJson(input);
  const outputs = findOutputs(step.run.items.map((one) => one.item));
  const agents = useQuery<Page<AgentInfo>>("/agents");
  const [text, setText] = useState(given);
  const [edited, setEdited] = useState<Record<string, string>>({});
  const [agent, setAgent] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const fork = async () => {
    const other = agent === "" ? {} : { agent };
    // Another input begins at the beginning: no later step can be kept.
    const body = text === given ? { at, ...(Object.keys(edited).length > 0 && { outputs: edited }) } : { input: text };
    const forked = await post<RunInfo>(`/runs/${segment(run.run_id)}/fork`, { ...body, ...other });
    navigate(["runs", forked.run_id]);
  };
  return (
    <div class="decision">
      <p>The fork is a new run in a fork of the session. This run stays as it is.</p>
      {typeof input === "string" && (
        <>
          <label for="fork-input">Input; another one begins where this run began</label>
          <textarea id="fork-input" rows={3} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </>
      )}
      {outputs.map(([callId, output]) => (
        <div key={callId}>
          <label for={`fork-${callId}`}>Output of {showUnseen(callId)}</label>
          <textarea
            id={`fork-${callId}`}
            rows={3}
            value={edited[callId] ?? output}
            onInput={(event) => setEdited({ ...edited, [callId]: event.currentTarget.value })}
          />
        </div>
      ))}
      <label for="fork-agent">Agent, with its model</label>
      <select id="fork-agent" value={agent} onChange={(event) => setAgent(event.currentTarget.value)}>
        <option value="">as before: {showUnseen(step.run.agent)}</option>
        {agents.data?.items
          .filter((one) => one.name !== step.run.agent)
          .map((one) => (
            <option key={one.name} value={one.name}>
              {showUnseen(one.model === null ? one.name : `${one.name}, ${one.model}`)}
            </option>
          ))}
      </select>
      <div class="actions">
        <Action kind="primary" act={fork} onProblem={setProblem}>
          {text === given ? `Fork from step ${at}` : "Fork with another input"}
        </Action>
      </div>
      {problem !== null && <Problem problem={problem} />}
    </div>
  );
}

/** Return the outputs at the end of the conversation, which no model has seen at this step. */
function findOutputs(items: JsonObject[]): [string, string][] {
  const found: [string, string][] = [];
  for (const item of items.toReversed()) {
    if (item.type !== "function_call_output") break;
    found.unshift([String(item.call_id), readContent(item.output ?? null)]);
  }
  return found;
}
