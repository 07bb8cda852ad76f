/** The first page: what there is to do, and whether everything works. Every number leads to what it counts. */

import type { ComponentChildren } from "preact";
import { useQuery } from "../api/query";
import { type JsonObject, mayDo, type Overview, type Page, type RunInfo } from "../api/types";
import { Age, Empty, Facts, Loading, Problem, Status } from "../parts/basic";
import { makeHref } from "../router";
import { useServer } from "../state/server";
import { formatCount, formatDuration, formatTime, showUnseen, summarize } from "../text";

const REFRESH = 2000;
const SHOWN = ["running", "queued", "waiting", "failed"] as const;

export function OverviewView() {
  const { data, problem, refresh } = useQuery<Overview>("/overview", {}, REFRESH);
  const recent = useQuery<Page<RunInfo>>("/runs", { limit: 8 }, REFRESH);
  if (data === null) return problem === null ? <Loading /> : <Problem problem={problem} retry={refresh} />;
  const show = (count: number) => (count >= data.counted_up_to ? `${formatCount(count)}+` : formatCount(count));
  return (
    <section class="page">
      <h1>Overview</h1>
      {problem !== null && <Problem problem={problem} />}
      <ul class="numbers">
        <Figure
          href={makeHref(["approvals"])}
          value={show(data.approvals)}
          isUrgent={data.approvals > 0}
          name="approvals wait"
        >
          {data.oldest_approval_at !== null && (
            <>
              oldest <Age at={data.oldest_approval_at} />
            </>
          )}
        </Figure>
        {SHOWN.map((status) => (
          <Figure
            key={status}
            href={makeHref(["runs"], { status })}
            value={show(data.runs[status] ?? 0)}
            isUrgent={status === "failed" && (data.runs[status] ?? 0) > 0}
            name={`runs ${status}`}
          />
        ))}
      </ul>
      <Health overview={data} />
      <h2>Latest runs</h2>
      {recent.data?.items.length === 0 && (
        <Empty title="No runs yet.">
          <p>
            <a href={makeHref(["runs"])}>Start the first one</a>.
          </p>
        </Empty>
      )}
      <ul class="latest">
        {recent.data?.items.map((run) => (
          <li key={run.run_id}>
            <Status status={run.status} /> <a href={makeHref(["runs", run.run_id])}>{summarize(run.run_id, 30)}</a>{" "}
            {showUnseen(run.agent)} <Age at={run.updated_at} />
          </li>
        ))}
      </ul>
    </section>
  );
}

interface FigureProps {
  href: string;
  value: string;
  name: string;
  isUrgent?: boolean;
  children?: ComponentChildren;
}

function Figure({ href, value, name, isUrgent = false, children }: FigureProps) {
  return (
    <li>
      <a href={href} class={isUrgent ? "figure urgent" : "figure"}>
        <strong>{value}</strong>
        <span>{name}</span>
        <small>{children}</small>
      </a>
    </li>
  );
}

/** The store, this process and its pools, as they answered last. */
export function Health({ overview }: { overview: Overview }) {
  const info = useServer();
  const { store, pools } = overview;
  const facts: [string, ComponentChildren][] = [
    [
      "store",
      store.status === "ok" ? `answers in ${formatDuration(store.seconds)}` : `${store.status}: ${store.detail ?? ""}`,
    ],
    [
      "this process",
      <span key="process">
        <a href={makeHref(["runs"], { status: "running" })}>{formatCount(overview.executing)} runs</a>,{" "}
        <a href={makeHref(["calls"])}>{formatCount(overview.calls)} calls</a>,{" "}
        <a href={makeHref(["workers"])}>{formatCount(overview.cells)} cells</a>
        {overview.draining && ", stopping"}
      </span>,
    ],
  ];
  if (info) facts.push(["server", `version ${info.version}, started ${formatTime(info.started_at)}`]);
  if (mayDo(info, "operator")) {
    facts.push([
      "worker pools",
      <a key="pools" href={makeHref(["workers"])}>
        {describePools(pools ?? [])}
      </a>,
    ]);
  }
  return (
    <>
      <h2>Health</h2>
      <Facts facts={facts} />
    </>
  );
}

function describePools(pools: JsonObject[]): string {
  if (pools.length === 0) return "none in this process";
  return pools
    .map(({ leased, starting, idle }) => `${String(leased)} in use, ${String(starting)} starting, ${String(idle)} idle`)
    .join("; ");
}
