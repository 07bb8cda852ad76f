/** Budgets: what runs may spend. */

import { useState } from "preact/hooks";
import { put, remove, segment } from "../api/client";
import { useQuery } from "../api/query";
import type { Budget, BudgetPeriod } from "../api/types";
import { Action, Empty, Loading, Problem } from "../parts/basic";
import { formatCost } from "../parts/run_words";
import { formatCount, showUnseen, summarize } from "../text";

const REFRESH = 5000;
const PERIODS: Record<BudgetPeriod, string> = { day: "a day", month: "a month", ever: "in all" };

export function Budgets({ mayChange }: { mayChange: boolean }) {
  const { data, problem, refresh } = useQuery<Budget[]>("/budgets", {}, REFRESH);
  const [failure, setFailure] = useState<unknown>(null);
  return (
    <>
      <h2>Budgets</h2>
      {mayChange && <NewBudget refresh={refresh} />}
      {(problem ?? failure) !== null && <Problem problem={problem ?? failure} />}
      {data === null ? (
        problem === null && <Loading />
      ) : data.length === 0 ? (
        <Empty title="No budgets yet.">
          <p>A budget limits what models may cost. Runs that it stops continue when it has something left again.</p>
        </Empty>
      ) : (
        <table class="list budgets">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Limit</th>
              <th scope="col">Spent</th>
              <th scope="col">For</th>
              {mayChange && <th scope="col">Actions</th>}
            </tr>
          </thead>
          <tbody>
            {data.map((one) => (
              <BudgetRow key={one.name} budget={one} mayChange={mayChange} refresh={refresh} onProblem={setFailure} />
            ))}
          </tbody>
        </table>
      )}
    </>
  );
}

interface RowProps {
  budget: Budget;
  mayChange: boolean;
  refresh(): void;
  onProblem(problem: unknown): void;
}

function BudgetRow({ budget, mayChange, refresh, onProblem }: RowProps) {
  const erase = async () => {
    if (!confirm(`Delete the budget ${budget.name}? Runs that it stopped continue.`)) return;
    await remove(`/budgets/${segment(budget.name)}`);
    refresh();
  };
  return (
    <tr>
      <td>{summarize(budget.name, 60)}</td>
      <td>{budget.locked ? <span class="quiet">encrypted</span> : describeLimit(budget)}</td>
      <td>
        {describeSpent(budget)} {isUsedUp(budget) && <span class="status status-waiting">used up</span>}
      </td>
      <td>{describeScope(budget)}</td>
      {mayChange && (
        <td>
          <Action kind="link" act={erase} onProblem={onProblem}>
            delete
          </Action>
        </td>
      )}
    </tr>
  );
}

export function describeLimit({ tokens, cost, per }: Budget): string {
  const limits = [
    tokens === undefined ? [] : `${formatCount(tokens)} tokens`,
    cost === undefined ? [] : formatCost(cost),
  ];
  return `${limits.flat().join(" or ")} ${PERIODS[per ?? "month"]}`;
}

export function describeSpent({ cost, spent, locked }: Budget): string {
  if (locked) return "";
  const tokens = `${formatCount(spent?.tokens ?? 0)} tokens`;
  if (cost === undefined) return tokens;
  const unpriced = spent?.unpriced_tokens ? `, ${formatCount(spent.unpriced_tokens)} tokens without a known price` : "";
  return `${tokens}, ${formatCost(spent?.cost ?? 0)}${unpriced}`;
}

export function isUsedUp({ tokens, cost, spent }: Budget): boolean {
  return (spent?.tokens ?? 0) >= (tokens ?? Infinity) || (spent?.cost ?? 0) >= (cost ?? Infinity);
}

function describeScope({ owner, agent }: Budget): string {
  const parts = [
    owner === undefined ? [] : `runs of ${showUnseen(owner)}`,
    agent === undefined ? [] : showUnseen(agent),
  ];
  return parts.flat().join(", ") || "all runs";
}

function NewBudget({ refresh }: { refresh(): void }) {
  const [fields, setFields] = useState({ name: "", tokens: "", cost: "", per: "month", owner: "", agent: "" });
  const [problem, setProblem] = useState<unknown>(null);
  const set = (name: keyof typeof fields) => (event: { currentTarget: { value: string } }) =>
    setFields({ ...fields, [name]: event.currentTarget.value });
  const isComplete = fields.name.trim() && (fields.tokens.trim() || fields.cost.trim());
  const create = async () => {
    const { name, tokens, cost, per, owner, agent } = fields;
    await put<Budget>(`/budgets/${segment(name.trim())}`, {
      tokens: tokens.trim() ? Number(tokens) : null,
      cost: cost.trim() ? Number(cost) : null,
      per,
      owner: owner.trim() || null,
      agent: agent.trim() || null,
    });
    setFields({ ...fields, name: "", tokens: "", cost: "" });
    setProblem(null);
    refresh();
  };
  return (
    <details class="new">
      <summary>Create or replace a budget</summary>
      <div class="new-form">
        <label>
          Name
          <input type="text" value={fields.name} onInput={set("name")} />
        </label>
        <label>
          Tokens
          <input type="number" min={0} value={fields.tokens} onInput={set("tokens")} />
        </label>
        <label>
          US dollars
          <input type="number" min={0} step="any" value={fields.cost} onInput={set("cost")} />
        </label>
        <label>
          Period
          <select value={fields.per} onChange={set("per")}>
            {Object.entries(PERIODS).map(([name, words]) => (
              <option key={name} value={name}>
                {words}
              </option>
            ))}
          </select>
        </label>
        <label>
          Owner of the sessions, if not all
          <input type="text" value={fields.owner} onInput={set("owner")} />
        </label>
        <label>
          Agent, if not all
          <input type="text" value={fields.agent} onInput={set("agent")} />
        </label>
        <Action kind="primary" act={create} onProblem={setProblem} disabled={!isComplete}>
          Save
        </Action>
      </div>
      {problem !== null && <Problem problem={problem} />}
    </details>
  );
}
