/** The keys of the inbox: j k a e r x. */

import { useEffect, useRef } from "preact/hooks";
import type { Approval } from "../api/types";
import { navigate } from "../router";
import type { Mode } from "./approval_detail";

export interface InboxKeys {
  shown: Approval[];
  index: number;
  mayDecide: boolean;
  setMode(mode: Mode): void;
  toggle(id: string): void;
}

export function useInboxKeys(keys: InboxKeys): void {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || isEditing(event.target)) return;
      if (handle(event.key, latest.current)) event.preventDefault();
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
}

function isEditing(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.matches("textarea, select, input:not([type=checkbox])");
}

function handle(key: string, { shown, index, mayDecide, setMode, toggle }: InboxKeys): boolean {
  const current = shown[index];
  if (key === "j") choose(shown[Math.min(index + 1, shown.length - 1)]);
  else if (key === "k") choose(shown[Math.max(index - 1, 0)]);
  else if (current === undefined || current.status !== "pending" || !mayDecide) return false;
  else if (key === "a" && current.kind === "approval") setMode("approve");
  else if (key === "e" && current.kind === "approval") setMode("edit");
  else if (key === "r") setMode("reject");
  else if (key === "x") toggle(current.id);
  else return false;
  return true;
}

/** Go to another entry of the inbox and bring it into view. */
function choose(approval: Approval | undefined): void {
  if (approval === undefined) return;
  navigate(["approvals", approval.id]);
  document.getElementById(`row-${approval.id}`)?.scrollIntoView({ block: "nearest" });
}
