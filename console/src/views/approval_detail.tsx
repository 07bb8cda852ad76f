/** One approval: what the model wants to do, and the decision about it. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, post, segment } from "../api/client";
import type { Approval, Decision, Json } from "../api/types";
import { Age, Code, Expiry, Facts, Problem, Status } from "../parts/basic";
import { Difference } from "../parts/difference";
import { makeHref } from "../router";
import { addApprovals, loadApproval } from "../state/approvals";
import { formatTime, parseArguments, showUnseen } from "../text";
import { CallContext } from "./call_context";
import { EditForm, RejectForm, UncertainForm } from "./decision_forms";

/** `approve` is the key `a`: it sends at once and goes back to `look`. */
export type Mode = "look" | "approve" | "edit" | "reject";

interface Props {
  approval: Approval;
  mode: Mode;
  setMode(mode: Mode): void;
  mayDecide: boolean;
}

export function ApprovalDetail({ approval, mode, setMode, mayDecide }: Props) {
  const { decide, isBusy, problem } = useDecide(approval);
  const [always, setAlways] = useState(false);
  const isOpen = approval.status === "pending" && mayDecide && !approval.locked;
  useEffect(() => {
    if (mode !== "approve") return;
    setMode("look");
    if (isOpen && !isBusy) void decide({ decision: "approve", always });
  }, [mode]);
  return (
    <article class="approval">
      <Heading approval={approval} />
      {problem !== null && <Problem problem={problem} />}
      {approval.status !== "pending" && <Decided approval={approval} />}
      {approval.locked ? (
        <p>This call is encrypted, and the server has no key for it.</p>
      ) : mode === "edit" && isOpen ? (
        <EditForm {...{ approval, decide, isBusy }} cancel={() => setMode("look")} />
      ) : (
        <Arguments approval={approval} />
      )}
      {isOpen && mode === "reject" && <RejectForm {...{ decide, isBusy, always }} cancel={() => setMode("look")} />}
      {isOpen && mode === "look" && approval.kind === "uncertain" && <UncertainForm {...{ decide, isBusy, setMode }} />}
      {isOpen && mode === "look" && approval.kind === "approval" && (
        <div class="actions">
          <button
            type="button"
            class="primary"
            disabled={isBusy}
            onClick={() => decide({ decision: "approve", always })}
          >
            Approve
          </button>
          <button type="button" disabled={isBusy} onClick={() => setMode("edit")}>
            Edit and approve
          </button>
          <button type="button" class="danger" disabled={isBusy} onClick={() => setMode("reject")}>
            Reject
          </button>
        </div>
      )}
      {isOpen && mode !== "edit" && approval.kind === "approval" && (
        <label class="always">
          <input type="checkbox" checked={always} onChange={(event) => setAlways(event.currentTarget.checked)} />
          Always: decide every later call of {showUnseen(approval.tool)} in this session the same way
        </label>
      )}
      <CallContext approval={approval} />
    </article>
  );
}

function Heading({ approval }: { approval: Approval }) {
  const { run_id, session_id, expires_at } = approval;
  return (
    <header>
      <a class="back" href={makeHref(["approvals"])}>
        ‹ all approvals
      </a>
      <h2>
        {showUnseen(approval.tool || "encrypted call")}
        {approval.kind === "uncertain" && <span class="tag warn">may have happened</span>}
        <Status status={approval.status} />
      </h2>
      <p class="quiet">
        {showUnseen(approval.agent)} asks, <Age at={approval.requested_at} />
        {approval.status === "pending" && expires_at && (
          <>
            {" · "}
            <Expiry at={expires_at} />
          </>
        )}
        {" · "}
        <a href={makeHref(["runs", run_id])}>run</a>
        {session_id && (
          <>
            {" · "}
            <a href={makeHref(["sessions", session_id])}>session {showUnseen(session_id)}</a>
          </>
        )}
      </p>
    </header>
  );
}

function Arguments({ approval }: { approval: Approval }) {
  const parsed = parseArguments(approval.arguments);
  const value = "value" in parsed ? parsed.value : approval.arguments;
  if (typeof value !== "object" || value === null || Array.isArray(value))
    return <Code value={value} label="arguments" />;
  const facts = Object.entries(value).map(([name, one]): [string, preact.ComponentChildren] => [
    showUnseen(name),
    <Code key={name} value={one} label={name} />,
  ]);
  return facts.length === 0 ? <p class="quiet">Without arguments.</p> : <Facts facts={facts} />;
}

/** The decision as the server has recorded it. */
function Decided({ approval }: { approval: Approval }) {
  const { status, decided_by, decided_at, message, edited, output, always } = approval;
  const [before, after] = [parseArguments(approval.arguments), parseArguments(edited ?? "null")];
  return (
    <div class="decided">
      <p>
        <Status status={status} /> {decided_by && <>by {showUnseen(decided_by)} </>}
        {decided_at && <time dateTime={new Date(decided_at * 1000).toISOString()}>{formatTime(decided_at)}</time>}
        {always && " · always, in this session"}
      </p>
      {message && <blockquote>{showUnseen(message)}</blockquote>}
      {output && <Code value={output} label="output" />}
      {edited && "value" in before && "value" in after && (
        <Difference before={before.value} after={after.value} label="Edited arguments" />
      )}
      {edited && !("value" in before && "value" in after) && <Code value={edited} label="edited arguments" />}
    </div>
  );
}

export type Decide = (decision: Decision) => Promise<void>;

/** Send a decision. The page shows what the server recorded, also if another person was first. */
function useDecide(approval: Approval): { decide: Decide; isBusy: boolean; problem: unknown } {
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>(null);
  const decide = async (decision: Decision) => {
    setBusy(true);
    setProblem(null);
    try {
      addApprovals([await post<Approval>(`/approvals/${segment(approval.id)}`, clean(decision))]);
    } catch (found) {
      setProblem(found);
      if (found instanceof ApiError && found.status === 409) await loadApproval(approval.id).catch(setProblem);
    } finally {
      setBusy(false);
    }
  };
  return { decide, isBusy, problem };
}

function clean(decision: Decision): Json {
  return Object.fromEntries(Object.entries(decision).filter(([, value]) => value !== undefined && value !== false));
}
