/** Schedules: runs that start at given times. */

import { useState } from "preact/hooks";
import { post, put, remove, segment } from "../api/client";
import { useQuery } from "../api/query";
import type { AgentInfo, Page, Schedule } from "../api/types";
import { Action, Age, Empty, Loading, Problem, Status } from "../parts/basic";
import { makeHref } from "../router";
import { formatDuration, showUnseen, summarize } from "../text";

const REFRESH = 5000;

export function Schedules() {
  const { data, problem, refresh } = useQuery<Schedule[]>("/schedules", {}, REFRESH);
  const [failure, setFailure] = useState<unknown>(null);
  return (
    <>
      <h2>Schedules</h2>
      <NewSchedule refresh={refresh} />
      {(problem ?? failure) !== null && <Problem problem={problem ?? failure} />}
      {data === null ? (
        problem === null && <Loading />
      ) : data.length === 0 ? (
        <Empty title="No schedules yet.">
          <p>A schedule starts runs of an agent at given times, once each, in whichever process is alive then.</p>
        </Empty>
      ) : (
        <table class="list schedules">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">When</th>
              <th scope="col">Next</th>
              <th scope="col">Actions</th>
              <th scope="col">Agent</th>
              <th scope="col">Last run</th>
            </tr>
          </thead>
          <tbody>
            {data.map((one) => (
              <ScheduleRow key={one.name} schedule={one} refresh={refresh} onProblem={setFailure} />
            ))}
          </tbody>
        </table>
      )}
    </>
  );
}

interface RowProps {
  schedule: Schedule;
  refresh(): void;
  onProblem(problem: unknown): void;
}

function ScheduleRow({ schedule, refresh, onProblem }: RowProps) {
  const path = `/schedules/${segment(schedule.name)}`;
  const isPaused = schedule.next_at === undefined;
  const change = (verb: "pause" | "resume") => () => post<Schedule>(`${path}/${verb}`).then(refresh);
  const erase = async () => {
    if (!confirm(`Delete the schedule ${schedule.name}? Its runs stay.`)) return;
    await remove(path);
    refresh();
  };
  return (
    <tr>
      <td>
        {summarize(schedule.name, 60)}
        {schedule.problem && <div class="invalid">{summarize(schedule.problem.message, 160)}</div>}
      </td>
      <td>{schedule.locked ? <span class="quiet">encrypted</span> : describeTimes(schedule)}</td>
      <td>{isPaused ? <Status status="paused" /> : <Age at={schedule.next_at ?? 0} />}</td>
      <td>
        <span class="row-actions">
          <Action kind="link" act={change(isPaused ? "resume" : "pause")} onProblem={onProblem}>
            {isPaused ? "resume" : "pause"}
          </Action>
          <Action kind="link" act={erase} onProblem={onProblem}>
            delete
          </Action>
        </span>
      </td>
      <td>{showUnseen(schedule.agent)}</td>
      <td>
        {schedule.last_run_id ? (
          <a href={makeHref(["runs", schedule.last_run_id])}>
            {schedule.last_at ? <Age at={schedule.last_at} /> : "its last run"}
          </a>
        ) : (
          "none yet"
        )}
        {schedule.skipped ? <div class="quiet">{schedule.skipped} skipped: that one had not ended</div> : null}
      </td>
    </tr>
  );
}

export function describeTimes({ cron, every, timezone }: Schedule): string {
  if (every !== undefined) return `every ${formatDuration(every)}`;
  return `${showUnseen(cron ?? "")} ${showUnseen(timezone ?? "UTC")}`;
}

function NewSchedule({ refresh }: { refresh(): void }) {
  const agents = useQuery<Page<AgentInfo>>("/agents");
  const names = agents.data?.items.map((one) => one.name) ?? [];
  const [fields, setFields] = useState({ name: "", agent: "", cron: "", every: "", timezone: "UTC", input: "" });
  const [problem, setProblem] = useState<unknown>(null);
  const agent = fields.agent || (names[0] ?? "");
  const set = (name: keyof typeof fields) => (event: { currentTarget: { value: string } }) =>
    setFields({ ...fields, [name]: event.currentTarget.value });
  const isComplete =
    fields.name.trim() && agent && fields.input.trim() && (fields.cron.trim() !== "") !== (fields.every.trim() !== "");
  const create = async () => {
    const { name, cron, every, timezone, input } = fields;
    const times = cron.trim() ? { cron: cron.trim(), timezone: timezone.trim() } : { every: Number(every) * 60 };
    await put<Schedule>(`/schedules/${segment(name.trim())}`, { agent, input, ...times });
    setFields({ ...fields, name: "", input: "" });
    refresh();
  };
  return (
    <details class="new">
      <summary>Create or replace a schedule</summary>
      <div class="new-form">
        <label>
          Name
          <input type="text" value={fields.name} onInput={set("name")} />
        </label>
        <label>
          Agent
          <select value={agent} onChange={set("agent")}>
            {names.map((one) => (
              <option key={one} value={one}>
                {showUnseen(one)}
              </option>
            ))}
          </select>
        </label>
        <label>
          Cron: minute, hour, day, month, weekday
          <input type="text" placeholder="0 9 * * 1-5" value={fields.cron} onInput={set("cron")} />
        </label>
        <label>
          Time zone of cron
          <input type="text" value={fields.timezone} onInput={set("timezone")} />
        </label>
        <label>
          Or every so many minutes
          <input type="number" min={0} step="any" value={fields.every} onInput={set("every")} />
        </label>
        <label class="wide">
          Input of each run
          <textarea rows={2} value={fields.input} onInput={set("input")} />
        </label>
        <Action kind="primary" act={create} onProblem={setProblem} disabled={!isComplete}>
          Save
        </Action>
      </div>
      {problem !== null && <Problem problem={problem} />}
    </details>
  );
}
