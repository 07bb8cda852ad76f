/** Settings: who may use the server, what was done, and how it is. */

import { useState } from "preact/hooks";
import { post, remove, segment } from "../api/client";
import { useQuery } from "../api/query";
import { type ApiKey, type AuditEntry, mayDo, type Overview, type Page, ROLES, type Role } from "../api/types";
import { Action, Age, Code, Empty, Loading, Problem } from "../parts/basic";
import { makeHref, type Route } from "../router";
import { useServer } from "../state/server";
import { useStore } from "../state/store";
import { chooseTheme, type Theme, theme } from "../state/theme";
import { formatTime, showUnseen, summarize } from "../text";
import { Budgets } from "./budgets";
import { Health } from "./overview";
import { Retention, Sandboxes } from "./retention";
import { Schedules } from "./schedules";
import { Webhooks } from "./webhooks";

export function SettingsView({ route }: { route: Route }) {
  const info = useServer();
  const isAdmin = mayDo(info, "admin");
  const overview = useQuery<Overview>("/overview");
  const chosen = useStore(theme);
  return (
    <section class="page">
      <h1>Settings</h1>
      <label>
        Colours{" "}
        <select value={chosen} onChange={(event) => chooseTheme(event.currentTarget.value as Theme)}>
          <option value="system">as the system</option>
          <option value="light">light</option>
          <option value="dark">dark</option>
        </select>
      </label>
      {info && (
        <p>
          You are {showUnseen(info.subject)}, with the role {info.role}, and see what belongs to{" "}
          {showUnseen(info.owner)}
          {mayDo(info, "operator") && " and to all others"}. <a href="docs">The API</a> can do all that these pages do.
        </p>
      )}
      {overview.data && <Health overview={overview.data} />}
      {mayDo(info, "operator") && (
        <>
          <Sandboxes />
          <Schedules />
          <Budgets mayChange={isAdmin} />
          <Retention />
        </>
      )}
      {isAdmin ? (
        <>
          <Webhooks />
          <Keys />
          <AuditLog after={route.query.after ?? null} />
        </>
      ) : (
        info && <p class="quiet">Webhooks, keys and the audit log are shown to admins.</p>
      )}
    </section>
  );
}

function Keys() {
  const { data, problem, refresh } = useQuery<ApiKey[]>("/keys");
  const [failure, setFailure] = useState<unknown>(null);
  const revoke = (one: ApiKey) => async () => {
    if (!confirm(`Revoke the key ${one.name}? Whoever uses it is refused within seconds.`)) return;
    await remove(`/keys/${segment(one.id)}`);
    refresh();
  };
  return (
    <>
      <h2>Keys</h2>
      <NewKey refresh={refresh} />
      {(problem ?? failure) !== null && <Problem problem={problem ?? failure} />}
      {data === null ? (
        problem === null && <Loading />
      ) : data.length === 0 ? (
        <Empty title="No keys yet.">
          <p>A key lets a program or a person on another machine use this server, with one role and for one owner.</p>
        </Empty>
      ) : (
        <table class="list">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Role</th>
              <th scope="col">Owner</th>
              <th scope="col">State</th>
              <th scope="col">Last used</th>
            </tr>
          </thead>
          <tbody>
            {data.map((one) => (
              <tr key={one.id}>
                <td>{summarize(one.name, 60)}</td>
                <td>{one.role}</td>
                <td>{showUnseen(one.owner)}</td>
                <td>
                  {one.revoked_at ? (
                    `revoked ${formatTime(one.revoked_at)}`
                  ) : (
                    <Action kind="danger" act={revoke(one)} onProblem={setFailure}>
                      Revoke
                    </Action>
                  )}
                </td>
                <td>{one.last_used_at ? <Age at={one.last_used_at} /> : "never"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </>
  );
}

/** What a role may do; each may also do what those before it may. */
const MAY: Record<Role, string> = {
  viewer: "reads the sessions, runs and approvals of the owner",
  user: "also starts runs and changes sessions of the owner",
  approver: "also reads the runs of all owners and decides their calls",
  operator: "also reads and changes everything else of all owners",
  admin: "also manages keys and owners, and reads the audit log",
};

function NewKey({ refresh }: { refresh(): void }) {
  const [name, setName] = useState("");
  const [owner, setOwner] = useState("");
  const [role, setRole] = useState<Role>("user");
  const [secret, setSecret] = useState<string | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const create = async () => {
    const made = await post<{ secret: string }>("/keys", { name: name.trim(), role, owner: owner.trim() });
    setSecret(made.secret);
    setName("");
    refresh();
  };
  return (
    <details class="new">
      <summary>Create a key</summary>
      <div class="new-form">
        <label>
          Name
          <input type="text" value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </label>
        <label>
          Owner
          <input type="text" value={owner} onInput={(event) => setOwner(event.currentTarget.value)} />
        </label>
        <label>
          Role
          <select value={role} onChange={(event) => setRole(event.currentTarget.value as Role)}>
            {ROLES.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        <p class="quiet wide">
          {role}: {MAY[role]}
        </p>
        <Action kind="primary" act={create} onProblem={setProblem} disabled={!name.trim() || !owner.trim()}>
          Create
        </Action>
      </div>
      {problem !== null && <Problem problem={problem} />}
      {secret !== null && (
        <div role="status">
          <p>This is the only time that the key is shown:</p>
          <Code value={secret} label="key" />
        </div>
      )}
    </details>
  );
}

function AuditLog({ after }: { after: string | null }) {
  const { data, problem } = useQuery<Page<AuditEntry>>("/audit", { after, limit: 50 });
  return (
    <>
      <h2>Audit log</h2>
      {problem !== null && <Problem problem={problem} />}
      {data?.items.length === 0 && (
        <p class="quiet">Decisions, denied requests and changes of keys will be listed here.</p>
      )}
      <table class="list audit">
        <tbody>
          {data?.items.map((one) => (
            <tr key={one.id}>
              <td class="number">{formatTime(one.at)}</td>
              <td>{summarize(one.action, 40)}</td>
              <td>{summarize(one.subject ?? "", 60)}</td>
              <td class="quiet">{summarize(one.details ? JSON.stringify(one.details) : "", 200)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {data?.next && <a href={makeHref(["settings"], { after: data.next })}>older entries</a>}
    </>
  );
}
