/** The forms of decisions that need more than a click. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { segment } from "../api/client";
import { useQuery } from "../api/query";
import type { Approval, Json, ToolInfo } from "../api/types";
import { Difference, findChanges } from "../parts/difference";
import { inferSchema, isSchema, type Schema } from "../parts/schema";
import { SchemaForm } from "../parts/schema_form";
import { parseArguments } from "../text";
import type { Decide, Mode } from "./approval_detail";

interface FormProps {
  decide: Decide;
  isBusy: boolean;
  cancel(): void;
}

/** The schema of the tool's arguments, or one that fits the arguments if the server does not have the tool any more. */
function useToolSchema(approval: Approval, value: unknown): Schema | null {
  const { data, problem } = useQuery<ToolInfo>(`/approvals/${segment(approval.id)}/tool`);
  if (data === null && problem === null) return null;
  return isSchema(data?.schema) ? data.schema : inferSchema(value);
}

/** Edit the arguments, of this call only; the difference to what the model asked for is shown before it is approved. */
export function EditForm({ approval, decide, isBusy, cancel }: FormProps & { approval: Approval }) {
  const parsed = parseArguments(approval.arguments);
  const before = "value" in parsed ? parsed.value : null;
  const schema = useToolSchema(approval, before);
  const [value, setValue] = useState<unknown>(before);
  const [invalid, setInvalid] = useState<ReadonlySet<string>>(new Set());
  const form = useFocus<HTMLFormElement>("input, textarea, select", schema !== null);
  const mark = (path: string, isInvalid: boolean) =>
    setInvalid((old) => {
      if (old.has(path) === isInvalid) return old;
      const changed = new Set(old);
      if (!changed.delete(path)) changed.add(path);
      return changed;
    });
  const submit = (event: Event) => {
    event.preventDefault();
    if (invalid.size === 0) void decide({ decision: "approve", arguments: value as Json });
  };
  const changes = findChanges(before, value).length;
  return (
    <form class="decision" ref={form} onSubmit={submit} onKeyDown={(event) => event.key === "Escape" && cancel()}>
      {schema && <SchemaForm schema={schema} value={value} onChange={setValue} onInvalid={mark} />}
      <div class="changes">
        <h3>What you change</h3>
        <Difference before={before} after={value} label="Your changes" />
      </div>
      <div class="actions">
        <button type="submit" class="primary" disabled={isBusy || invalid.size > 0 || changes === 0}>
          Approve with {changes === 1 ? "1 change" : `${changes} changes`}
        </button>
        <button type="button" onClick={cancel}>
          Cancel
        </button>
      </div>
    </form>
  );
}

export function RejectForm({ decide, isBusy, always, cancel }: FormProps & { always: boolean }) {
  const [message, setMessage] = useState("");
  const form = useFocus<HTMLFormElement>("textarea", true);
  const submit = (event: Event) => {
    event.preventDefault();
    void decide({ decision: "reject", always, ...(message.trim() && { message: message.trim() }) });
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === "Escape") cancel();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  };
  return (
    <form class="decision" ref={form} onSubmit={submit} onKeyDown={press}>
      <label for="message">Message to the model, in place of an output</label>
      <textarea
        id="message"
        rows={3}
        value={message}
        placeholder="For example: the customer was paid back yesterday."
        onInput={(event) => setMessage(event.currentTarget.value)}
      />
      <div class="actions">
        <button type="submit" class="danger" disabled={isBusy}>
          Reject
        </button>
        <button type="button" onClick={cancel}>
          Cancel
        </button>
        <small>Ctrl+Enter sends</small>
      </div>
    </form>
  );
}

interface UncertainProps {
  decide: Decide;
  isBusy: boolean;
  setMode(mode: Mode): void;
}

/** A call that may have happened: a person finds out, and says what is true. */
export function UncertainForm({ decide, isBusy, setMode }: UncertainProps) {
  const [isDone, setDone] = useState(false);
  const [output, setOutput] = useState("");
  if (isDone) {
    return (
      <form
        class="decision"
        onSubmit={(event) => {
          event.preventDefault();
          void decide({ decision: "done", output });
        }}
      >
        <label for="output">What the call returned, as the model shall read it</label>
        <textarea id="output" rows={3} value={output} onInput={(event) => setOutput(event.currentTarget.value)} />
        <div class="actions">
          <button type="submit" class="primary" disabled={isBusy}>
            It happened
          </button>
          <button type="button" onClick={() => setDone(false)}>
            Cancel
          </button>
        </div>
      </form>
    );
  }
  return (
    <div class="decision">
      <p>
        The call was under way when its process ended. Look where it would have had its effect, for the idempotency key
        below if the tool passed it on.
      </p>
      <div class="actions">
        <button type="button" class="primary" disabled={isBusy} onClick={() => setDone(true)}>
          It happened…
        </button>
        <button type="button" disabled={isBusy} onClick={() => decide({ decision: "again" })}>
          It did not: call again
        </button>
        <button type="button" class="danger" disabled={isBusy} onClick={() => setMode("reject")}>
          It did not: do not call
        </button>
      </div>
    </div>
  );
}

/** Put the focus on the first control of a form when it appears, before a key can be pressed. */
function useFocus<T extends HTMLElement>(selector: string, isReady: boolean) {
  const element = useRef<T>(null);
  useLayoutEffect(() => {
    if (isReady) element.current?.querySelector<HTMLElement>(selector)?.focus();
  }, [isReady, selector]);
  return element;
}
