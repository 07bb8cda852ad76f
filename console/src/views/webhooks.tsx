/** Webhooks: servers that are notified of events, and the requests that were sent to them. */

import { useState } from "preact/hooks";
import { post, remove, segment } from "../api/client";
import { useQuery } from "../api/query";
import type { Webhook, WebhookDelivery } from "../api/types";
import { Action, Age, Code, Empty, Loading, Problem, Status } from "../parts/basic";
import { formatTime, parseJson, showUnseen, summarize } from "../text";

const REFRESH = 2000;
const EVENTS = [
  "run.waiting",
  "run.blocked",
  "run.completed",
  "run.failed",
  "run.cancelled",
  "approval.requested",
  "approval.decided",
];

export function Webhooks() {
  const { data, problem, refresh } = useQuery<Webhook[]>("/webhooks");
  return (
    <>
      <h2>Webhooks</h2>
      <NewWebhook refresh={refresh} />
      {problem !== null && <Problem problem={problem} />}
      {data === null ? (
        problem === null && <Loading />
      ) : data.length === 0 ? (
        <Empty title="No webhooks yet.">
          <p>A webhook tells a server of yours when a run stops, or when a call waits for a decision.</p>
        </Empty>
      ) : (
        <ul class="webhooks">
          {data.map((one) => (
            <WebhookEntry key={one.id} webhook={one} refresh={refresh} />
          ))}
        </ul>
      )}
    </>
  );
}

function WebhookEntry({ webhook, refresh }: { webhook: Webhook; refresh(): void }) {
  const path = `/webhooks/${segment(webhook.id)}`;
  const [isOpen, setOpen] = useState(false);
  const [problem, setProblem] = useState<unknown>(null);
  const test = async () => {
    await post<WebhookDelivery>(`${path}/test`);
    setOpen(true);
  };
  const erase = async () => {
    if (!confirm("Delete this webhook with its deliveries? What was not sent yet is not sent any more.")) return;
    await remove(path);
    refresh();
  };
  return (
    <li class="webhook">
      <p>
        <strong>{webhook.url === null ? "encrypted address" : showUnseen(webhook.url)}</strong>{" "}
        {webhook.private && <span class="tag">private network</span>}
      </p>
      <p class="quiet">
        {webhook.events.length === EVENTS.length ? "all events" : webhook.events.map(showUnseen).join(", ")} · created{" "}
        <Age at={webhook.created_at} />
      </p>
      <div class="actions">
        <button type="button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          Deliveries
        </button>
        <Action act={test} onProblem={setProblem} title="Send an event of type test">
          Send a test
        </Action>
        <Action kind="danger" act={erase} onProblem={setProblem}>
          Delete
        </Action>
      </div>
      {problem !== null && <Problem problem={problem} />}
      {isOpen && <Deliveries path={path} />}
    </li>
  );
}

/** What was sent and what will be, the latest first. */
function Deliveries({ path }: { path: string }) {
  const { data, problem, refresh } = useQuery<WebhookDelivery[]>(`${path}/deliveries`, {}, REFRESH);
  const [failure, setFailure] = useState<unknown>(null);
  if (data === null) return problem === null ? <Loading /> : <Problem problem={problem} />;
  if (data.length === 0)
    return <p class="quiet">Nothing was sent yet. Send a test to see whether the server answers.</p>;
  const resend = (one: WebhookDelivery) => () =>
    post<WebhookDelivery>(`${path}/deliveries/${segment(one.id)}/resend`).then(refresh);
  return (
    <>
      {(problem ?? failure) !== null && <Problem problem={problem ?? failure} />}
      <table class="list deliveries">
        <thead>
          <tr>
            <th scope="col">State</th>
            <th scope="col">Event</th>
            <th scope="col">Last answer</th>
            <th scope="col">Action</th>
            <th scope="col">Happened</th>
            <th scope="col">Attempts</th>
          </tr>
        </thead>
        <tbody>
          {data.map((one) => (
            <tr key={one.id}>
              <td>
                <Status status={one.status} />
              </td>
              <td>
                <details>
                  <summary>{showUnseen(one.event)}</summary>
                  <Code value={readBody(one.body)} label="body" />
                </details>
              </td>
              <td>
                {one.response_status ?? ""} {summarize(one.problem ?? "", 160)}
                {one.next_at !== null && one.attempts > 0 && (
                  <div class="quiet">
                    again <Age at={one.next_at} />
                  </div>
                )}
              </td>
              <td>
                {one.status !== "pending" && (
                  <Action kind="link" act={resend(one)} onProblem={setFailure}>
                    send again
                  </Action>
                )}
              </td>
              <td title={formatTime(one.created_at)}>
                <Age at={one.created_at} />
              </td>
              <td class="number">{one.attempts}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

function readBody(body: string): unknown {
  const parsed = parseJson(body);
  return "value" in parsed ? parsed.value : body;
}

function NewWebhook({ refresh }: { refresh(): void }) {
  const [url, setUrl] = useState("");
  const [isPrivate, setPrivate] = useState(false);
  const [events, setEvents] = useState<ReadonlySet<string>>(new Set(EVENTS));
  const [secret, setSecret] = useState<string | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const create = async () => {
    const body = { url: url.trim(), private: isPrivate, events: EVENTS.filter((one) => events.has(one)) };
    const made = await post<{ secret: string }>("/webhooks", body);
    setSecret(made.secret);
    setUrl("");
    refresh();
  };
  const toggle = (name: string) => {
    const changed = new Set(events);
    if (!changed.delete(name)) changed.add(name);
    setEvents(changed);
  };
  return (
    <details class="new">
      <summary>Create a webhook</summary>
      <div class="new-form">
        <label class="wide">
          Address
          <input
            type="text"
            inputMode="url"
            placeholder="https://example.com/standfast"
            value={url}
            onInput={(event) => setUrl(event.currentTarget.value)}
          />
        </label>
        <fieldset class="wide ticks">
          <legend>Events</legend>
          {EVENTS.map((one) => (
            <label key={one}>
              <input type="checkbox" checked={events.has(one)} onChange={() => toggle(one)} /> {one}
            </label>
          ))}
        </fieldset>
        <label class="wide tick-line">
          <input type="checkbox" checked={isPrivate} onChange={(event) => setPrivate(event.currentTarget.checked)} />{" "}
          The server is in a private network; http is allowed, too
        </label>
        <Action kind="primary" act={create} onProblem={setProblem} disabled={!url.trim() || events.size === 0}>
          Create
        </Action>
      </div>
      {problem !== null && <Problem problem={problem} />}
      {secret !== null && (
        <div role="status">
          <p>Requests are signed with this secret. This is the only time that it is shown:</p>
          <Code value={secret} label="secret" />
        </div>
      )}
    </details>
  );
}
