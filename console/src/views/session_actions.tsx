/** What can be done with a session: say something, branch, rewind, compact, export, delete. */

import { useState } from "preact/hooks";
import { post, remove, segment } from "../api/client";
import { useQuery } from "../api/query";
import type { AgentInfo, CompactionPreview, Page, RunInfo, SessionInfo } from "../api/types";
import { Action, Loading, Problem } from "../parts/basic";
import { download } from "../parts/download";
import { Transcript } from "../parts/transcript";
import { navigate } from "../router";
import { formatCount, showUnseen } from "../text";

/** The head of a session as the condition of a change: it fails if another change came first. */
export const ifUnchanged = ({ head }: { head: SessionInfo["head"] }) => ({
  "if-match": `"${head.version}-${head.length}"`,
});

interface SendProps {
  sessionId: string;
  latest: RunInfo | null;
  refresh(): void;
}

/** A message starts a run: of the agent that answered before, or of another one. */
export function Send({ sessionId, latest, refresh }: SendProps) {
  const agents = useQuery<Page<AgentInfo>>("/agents");
  const names = agents.data?.items.map((one) => one.name) ?? [];
  const [agent, setAgent] = useState<string | null>(null);
  const [text, setText] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const usual = latest && names.includes(latest.agent) ? latest.agent : names[0];
  const chosen = agent ?? usual;
  const start = async () => {
    await post<RunInfo>("/runs", { agent: chosen, input: text, session_id: sessionId });
    setText("");
    refresh();
  };
  return (
    <div class="send">
      <textarea
        aria-label="Message"
        rows={2}
        value={text}
        placeholder="Say something: it starts a run."
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <select aria-label="Agent" value={chosen ?? ""} onChange={(event) => setAgent(event.currentTarget.value)}>
        {names.map((one) => (
          <option key={one} value={one}>
            {showUnseen(one)}
          </option>
        ))}
      </select>
      <Action kind="primary" act={start} onProblem={setProblem} disabled={!text.trim() || chosen === undefined}>
        Send
      </Action>
      {problem !== null && <Problem problem={problem} />}
    </div>
  );
}

/** Say something else at an earlier place: in a fork, so that this session stays as it is. */
export function EditBranch({
  sessionId,
  at,
  text,
  cancel,
}: {
  sessionId: string;
  at: number;
  text: string;
  cancel(): void;
}) {
  const agents = useQuery<Page<AgentInfo>>("/agents");
  const [edited, setEdited] = useState(text);
  const [problem, setProblem] = useState<unknown>(null);
  const agent = agents.data?.items[0]?.name;
  const branch = async () => {
    const forked = await post<SessionInfo>(`/sessions/${segment(sessionId)}/fork`, { at });
    await post<RunInfo>("/runs", { agent, input: edited, session_id: forked.session_id });
    navigate(["sessions", forked.session_id]);
  };
  return (
    <div class="decision">
      <label for="edited">The new message, in a fork of this session</label>
      <textarea id="edited" rows={3} value={edited} onInput={(event) => setEdited(event.currentTarget.value)} />
      <div class="actions">
        <Action kind="primary" act={branch} onProblem={setProblem} disabled={!edited.trim() || agent === undefined}>
          Branch
        </Action>
        <button type="button" onClick={cancel}>
          Cancel
        </button>
      </div>
      {problem !== null && <Problem problem={problem} />}
    </div>
  );
}

export function SessionActions({ info, refresh }: { info: SessionInfo; refresh(): void }) {
  const [problem, setProblem] = useState<unknown>(null);
  const [isCompacting, setCompacting] = useState(false);
  const path = `/sessions/${segment(info.session_id)}`;
  const undo = async () => {
    await post(`${path}/restore`, { generation: info.generation - 1 }, ifUnchanged(info));
    refresh();
  };
  const save = () => download(`${path}/export`, `${info.session_id}.jsonl`);
  const erase = async () => {
    if (!confirm("Delete this session with its items and runs? This cannot be undone.")) return;
    await remove(path);
    navigate(["sessions"]);
  };
  return (
    <>
      <div class="actions">
        <button type="button" onClick={() => setCompacting(!isCompacting)} aria-expanded={isCompacting}>
          Compact…
        </button>
        {info.generation > 0 && (
          <Action
            act={undo}
            onProblem={setProblem}
            title="Go back to the generation before the latest rewind or compaction"
          >
            Undo
          </Action>
        )}
        <Action act={save} onProblem={setProblem}>
          Export
        </Action>
        <Action kind="danger" act={erase} onProblem={setProblem}>
          Delete
        </Action>
      </div>
      {problem !== null && <Problem problem={problem} />}
      {isCompacting && <Compaction info={info} done={() => setCompacting(false)} refresh={refresh} />}
    </>
  );
}

/** Replace the oldest items by a summary, after a look at what would be replaced. */
function Compaction({ info, done, refresh }: { info: SessionInfo; done(): void; refresh(): void }) {
  const path = `/sessions/${segment(info.session_id)}/compaction`;
  const [keep, setKeep] = useState(10);
  const [summary, setSummary] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const preview = useQuery<CompactionPreview>(path, { keep_last: keep });
  const found = preview.data;
  const compact = async () => {
    if (found === null) return;
    const body = { keep_last: keep, ...(summary.trim() && { summary: summary.trim() }) };
    await post(path, body, ifUnchanged(found));
    refresh();
    done();
  };
  return (
    <div class="decision compaction">
      <label for="keep">Keep the latest items</label>
      <input
        id="keep"
        type="number"
        min={0}
        value={keep}
        onInput={(event) => setKeep(Math.max(0, Math.trunc(Number(event.currentTarget.value)) || 0))}
      />
      <label for="summary">
        {found?.can_summarise
          ? "Summary; empty lets the server write it"
          : "Summary, which the model gets in place of them"}
      </label>
      <textarea id="summary" rows={3} value={summary} onInput={(event) => setSummary(event.currentTarget.value)} />
      {preview.problem !== null && <Problem problem={preview.problem} />}
      {found === null ? (
        preview.problem === null && <Loading />
      ) : (
        <>
          <p>
            Replaces {found.replaced.length} items (about {formatCount(found.replaced_tokens)} tokens) and keeps{" "}
            {found.kept} (about {formatCount(found.kept_tokens)}).
          </p>
          <div class="preview">
            <Transcript items={found.replaced} />
          </div>
          <div class="actions">
            <Action
              kind="primary"
              act={compact}
              onProblem={setProblem}
              disabled={found.replaced.length === 0 || (!found.can_summarise && !summary.trim())}
            >
              Compact
            </Action>
            <button type="button" onClick={done}>
              Cancel
            </button>
          </div>
        </>
      )}
      {problem !== null && <Problem problem={problem} />}
    </div>
  );
}
