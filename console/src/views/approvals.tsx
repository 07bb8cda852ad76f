/** The inbox: calls that wait for a person. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { post } from "../api/client";
import { type Approval, type DecisionResult, mayDo, type Verdict } from "../api/types";
import { Action, Age, Empty, Expiry, Loading, Problem, Status } from "../parts/basic";
import { makeHref, type Route } from "../router";
import { approvals, listWaiting, loadApproval } from "../state/approvals";
import { useServer } from "../state/server";
import { useStore } from "../state/store";
import { showUnseen, summarize } from "../text";
import { ApprovalDetail, type Mode } from "./approval_detail";
import { useInboxKeys } from "./inbox_keys";

export function ApprovalsView({ route }: { route: Route }) {
  const known = useStore(approvals);
  const mayDecide = mayDo(useServer(), "approver");
  const chosenId = route.parts[1] ?? null;
  const shown = useShown(known, chosenId);
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [mode, setMode] = useState<Mode>("look");
  const index = shown.findIndex((one) => one.id === chosenId);
  const current = shown[index] ?? null;

  useEffect(() => setMode("look"), [chosenId]);
  const toggle = (id: string) => setSelected((old) => toggleIn(old, id));
  useInboxKeys({ shown, index, mayDecide, setMode, toggle });

  if (known === null) return <Loading />;
  const waiting = listWaiting(known);
  const ticked = waiting.filter((one) => selected.has(one.id));
  return (
    <div class={chosenId === null ? "inbox" : "inbox has-detail"}>
      <section class="inbox-list" aria-label="Approvals">
        <h1>Approvals</h1>
        {mayDecide && ticked.length > 0 && <BatchBar ticked={ticked} clear={() => setSelected(new Set())} />}
        {shown.length === 0 ? (
          <Empty title="Nothing waits for a decision.">
            <p>
              A tool with <code>needs_approval=True</code> waits here before it is called. So does a call that was under
              way when its process died: it may have happened.
            </p>
          </Empty>
        ) : (
          <ul>
            {shown.map((one) => (
              <ApprovalRow
                key={one.id}
                approval={one}
                isCurrent={one.id === chosenId}
                isTicked={selected.has(one.id)}
                toggle={mayDecide && one.status === "pending" ? () => toggle(one.id) : null}
              />
            ))}
          </ul>
        )}
        {mayDecide ? (
          <p class="quiet keys">
            Keys: <kbd>j</kbd> <kbd>k</kbd> next, previous · <kbd>a</kbd> approve · <kbd>e</kbd> edit · <kbd>r</kbd>{" "}
            reject · <kbd>x</kbd> select
          </p>
        ) : (
          <p class="quiet">You can read these. Deciding needs the role approver.</p>
        )}
      </section>
      <section class="inbox-detail" aria-label="Approval">
        {chosenId === null ? (
          <Empty title={waiting.length > 0 ? "Choose a call." : "Quiet."} />
        ) : current === null ? (
          <Missing id={chosenId} />
        ) : (
          <ApprovalDetail key={current.id} approval={current} mode={mode} setMode={setMode} mayDecide={mayDecide} />
        )}
      </section>
    </div>
  );
}

/** Those that wait, oldest first, and those that stopped waiting while they were on this page. */
function useShown(known: ReadonlyMap<string, Approval> | null, chosenId: string | null): Approval[] {
  return useMemo(() => {
    const all = known === null ? [] : [...known.values()];
    return all.filter((one) => one.status === "pending" || one.id === chosenId || isRecent(one)).sort(compare);
  }, [known, chosenId]);
}

const openedAt = Date.now() / 1000;
const isRecent = (one: Approval) => (one.decided_at ?? 0) >= openedAt;
const compare = (a: Approval, b: Approval) => a.requested_at - b.requested_at || (a.id < b.id ? -1 : 1);

function toggleIn(old: ReadonlySet<string>, id: string): ReadonlySet<string> {
  const changed = new Set(old);
  if (!changed.delete(id)) changed.add(id);
  return changed;
}

interface RowProps {
  approval: Approval;
  isCurrent: boolean;
  isTicked: boolean;
  toggle: (() => void) | null;
}

function ApprovalRow({ approval, isCurrent, isTicked, toggle }: RowProps) {
  const { id, tool, agent, status, kind } = approval;
  return (
    <li class={isCurrent ? "row current" : "row"} id={`row-${id}`}>
      {toggle ? (
        <label class="tick">
          <input type="checkbox" checked={isTicked} onChange={toggle} />
          <span class="visually-hidden">select {summarize(tool, 40)}</span>
        </label>
      ) : (
        <span class="tick" />
      )}
      <a href={makeHref(["approvals", id])} aria-current={isCurrent ? "true" : undefined}>
        <span class="row-head">
          <strong>{summarize(tool || "encrypted call", 60)}</strong>
          {kind === "uncertain" && <span class="tag warn">may have happened</span>}
          {status === "pending" ? <Age at={approval.requested_at} /> : <Status status={status} />}
        </span>
        <span class="row-text">{summarize(approval.arguments, 90)}</span>
        <span class="row-foot">
          {summarize(agent, 40)}
          {status === "pending" && approval.expires_at && <Expiry at={approval.expires_at} />}
          {status !== "pending" && approval.decided_by && <span>by {showUnseen(approval.decided_by)}</span>}
        </span>
      </a>
    </li>
  );
}

function Missing({ id }: { id: string }) {
  const [problem, setProblem] = useState<unknown>(null);
  useEffect(() => {
    setProblem(null);
    loadApproval(id).catch(setProblem);
  }, [id]);
  return problem === null ? <Loading /> : <Problem problem={problem} />;
}

/** Decides several at once. Each has a result of its own. */
function BatchBar({ ticked, clear }: { ticked: Approval[]; clear(): void }) {
  const [problem, setProblem] = useState<unknown>(null);
  const [failed, setFailed] = useState<DecisionResult[]>([]);
  const uncertain = ticked.filter((one) => one.kind === "uncertain").length;
  const decide = async (decision: Verdict) => {
    const decisions = ticked.map((one) => ({ approval_id: one.id, decision }));
    const results = await post<DecisionResult[]>("/approvals/decide", decisions);
    setFailed(results.filter((one) => one.code !== undefined));
    await Promise.all(ticked.map((one) => loadApproval(one.id)));
    if (results.every((one) => one.code === undefined)) clear();
  };
  return (
    <div class="batch" role="group" aria-label="Selected approvals">
      <span>{ticked.length} selected</span>
      <Action kind="primary" act={() => decide("approve")} onProblem={setProblem} disabled={uncertain > 0}>
        Approve all
      </Action>
      <Action kind="danger" act={() => decide("reject")} onProblem={setProblem}>
        Reject all
      </Action>
      <button type="button" class="link" onClick={clear}>
        clear
      </button>
      {uncertain > 0 && <small>{uncertain} may have happened: decide about these one by one.</small>}
      {problem !== null && <Problem problem={problem} />}
      {failed.map((one) => (
        <small class="invalid" key={one.approval_id}>
          {one.detail}
        </small>
      ))}
    </div>
  );
}
