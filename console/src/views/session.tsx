/** One session: what was said, what the model sees of it, earlier generations, and what can be done with it. */

import { useEffect, useState } from "preact/hooks";
import { get, post, segment } from "../api/client";
import { useFetch, useQuery } from "../api/query";
import {
  type Generation,
  type JsonObject,
  mayDo,
  type Page,
  type RunInfo,
  type SessionBranch,
  type SessionEntry,
  type SessionInfo,
  type SessionView as View,
} from "../api/types";
import { Age, Code, Loading, Missing, Problem, Status } from "../parts/basic";
import { describeItem } from "../parts/items";
import { Transcript } from "../parts/transcript";
import { makeHref, navigate, type Route, replaceQuery } from "../router";
import { useRunEvents } from "../state/run_events";
import { useServer } from "../state/server";
import { formatCount, formatTime, showUnseen, summarize } from "../text";
import { EditBranch, ifUnchanged, Send, SessionActions } from "./session_actions";

const REFRESH = 2000;
const MOST_BRANCHES = 20;

export function SessionPage({ sessionId, route }: { sessionId: string; route: Route }) {
  const path = `/sessions/${segment(sessionId)}`;
  const generation = route.query.generation ?? null;
  const info = useQuery<SessionInfo>(path, {}, REFRESH);
  const head = info.data ? `${info.data.head.version}-${info.data.head.length}` : "";
  const view = useFetch<View>(`${path} ${generation}`, (signal) => get<View>(`${path}/view`, { generation }, signal));
  const generations = useQuery<Generation[]>(`${path}/generations`);
  const branches = useQuery<SessionBranch[]>(`${path}/branches`);
  const runs = useQuery<Page<RunInfo>>("/runs", { session_id: sessionId, limit: 5 }, REFRESH);
  const mayWrite = mayDo(useServer(), "user") && generation === null;
  // The head says that something was written; only then the items are read again.
  useEffect(() => {
    if (head === "") return;
    view.refresh();
    generations.refresh();
    branches.refresh();
  }, [head]);
  const refresh = () => {
    info.refresh();
    view.refresh();
    generations.refresh();
    runs.refresh();
  };
  if (info.data === null) {
    if (info.problem === null) return <Loading />;
    return <Missing problem={info.problem} retry={info.refresh} list="sessions" />;
  }
  const current = runs.data?.items.find((one) => one.status === "running" || one.status === "queued") ?? null;
  return (
    <section class="session page">
      <Heading info={info.data} view={view.data} runs={runs.data?.items ?? []} />
      {mayWrite && <SessionActions info={info.data} refresh={refresh} />}
      <Generations list={generations.data ?? []} chosen={generation} />
      <Branches list={branches.data ?? []} />
      {view.problem !== null && <Problem problem={view.problem} />}
      {view.data === null ? (
        <Loading />
      ) : (
        <Items
          sessionId={sessionId}
          view={view.data}
          isRaw={route.query.show === "raw"}
          mayWrite={mayWrite}
          refresh={refresh}
        />
      )}
      {current && <LiveAnswer runId={current.run_id} key={current.run_id} />}
      {mayWrite && <Send sessionId={sessionId} latest={runs.data?.items[0] ?? null} refresh={refresh} />}
    </section>
  );
}

function Heading({ info, view, runs }: { info: SessionInfo; view: View | null; runs: RunInfo[] }) {
  const isRaw = location.hash.includes("show=raw");
  return (
    <header>
      <h1>
        {showUnseen(info.session_id)}
        {info.encrypted && <span class="tag">encrypted</span>}
      </h1>
      <p class="quiet">
        {formatCount(info.head.length)} items
        {view && ` · about ${formatCount(view.tokens)} tokens for the model`} · owner{" "}
        {showUnseen(info.owner ?? "nobody")} · changed <Age at={info.updated_at} />
        {" · "}
        <a href={makeHref(["workers", info.session_id])}>notebook</a> ·{" "}
        <a href={makeHref(["runs"], { session: info.session_id })}>all runs</a>
        {runs.slice(0, 3).map((run) => (
          <span key={run.run_id}>
            {" "}
            <a href={makeHref(["runs", run.run_id])} aria-label={`run ${run.run_id}, ${run.status}`}>
              <Status status={run.status} />
            </a>
          </span>
        ))}
        {" · "}
        <button type="button" class="link" onClick={() => replaceQuery({ show: isRaw ? null : "raw" })}>
          {isRaw ? "as a conversation" : "raw items"}
        </button>
      </p>
    </header>
  );
}

/** Earlier views of the session: it was rewound, compacted or replaced. */
function Generations({ list, chosen }: { list: Generation[]; chosen: string | null }) {
  if (list.length === 0) return null;
  return (
    <nav class="filters" aria-label="Generations">
      <button type="button" class="link" disabled={chosen === null} onClick={() => replaceQuery({ generation: null })}>
        now
      </button>
      {list.toReversed().map((one) => (
        <button
          key={one.number}
          type="button"
          class="link"
          disabled={chosen === String(one.number)}
          title={`until ${formatTime(one.replaced_at)}`}
          onClick={() => replaceQuery({ generation: one.number })}
        >
          generation {one.number} ({one.length} items)
        </button>
      ))}
      {chosen !== null && (
        <span class="quiet">You read an earlier generation: nothing of it is lost, and the model does not see it.</span>
      )}
    </nav>
  );
}

/** Sessions that begin with the same items: forks of this one, what it was forked from, and other forks of that. */
function Branches({ list }: { list: SessionBranch[] }) {
  if (list.length === 0) return null;
  return (
    <nav class="branches" aria-label="Branches">
      <h2>Branches</h2>
      <ul>
        {list.slice(0, MOST_BRANCHES).map((one) => (
          <li key={one.session_id}>
            <a href={makeHref(["sessions", one.session_id])}>{summarize(one.session_id, 40)}</a>{" "}
            <span class="quiet">
              the first {one.shared === 1 ? "item is" : `${formatCount(one.shared)} items are`} the same, then{" "}
              {formatCount(one.head.length - one.shared)} of its own · changed <Age at={one.updated_at} />
            </span>
          </li>
        ))}
      </ul>
      {list.length > MOST_BRANCHES && <p class="quiet">and {formatCount(list.length - MOST_BRANCHES)} more</p>}
    </nav>
  );
}

interface ItemsProps {
  sessionId: string;
  view: View;
  isRaw: boolean;
  mayWrite: boolean;
  refresh(): void;
}

function Items({ sessionId, view, isRaw, mayWrite, refresh }: ItemsProps) {
  const [edited, setEdited] = useState<number | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const { entries } = view;
  if (entries.length === 0) return <p class="quiet">No items yet: say something below.</p>;
  if (isRaw) return <Code value={entries.map((one) => one.item)} label="items" />;
  const fork = (at: number) =>
    post<SessionInfo>(`/sessions/${segment(sessionId)}/fork`, { at }).then(
      (forked) => navigate(["sessions", forked.session_id]),
      setProblem,
    );
  const rewind = (to: number) => {
    const dropped = view.head.length - to;
    const question = `Drop the ${dropped === 1 ? "item" : `${dropped} items`} after this one? They stay readable as an earlier generation.`;
    if (!confirm(question)) return;
    post(`/sessions/${segment(sessionId)}/rewind`, { to }, ifUnchanged(view)).then(refresh, setProblem);
  };
  const aside = (index: number) => {
    const entry = entries[index];
    if (!mayWrite || entry === undefined) return null;
    return (
      <span class="entry-actions">
        <button type="button" class="link" onClick={() => fork(entry.position + 1)}>
          fork after this
        </button>
        {entry.position + 1 < view.head.length && (
          <button type="button" class="link" onClick={() => rewind(entry.position + 1)}>
            rewind to this
          </button>
        )}
        {isFromUser(entry) && (
          <button type="button" class="link" onClick={() => setEdited(index)}>
            edit
          </button>
        )}
      </span>
    );
  };
  const chosen = edited === null ? undefined : entries[edited];
  return (
    <>
      {problem !== null && <Problem problem={problem} />}
      <Transcript
        items={entries.map((one) => one.item)}
        aside={aside}
        hidden={(index) => entries[index]?.hidden ?? null}
      />
      {chosen?.item && (
        <EditBranch
          sessionId={sessionId}
          at={chosen.position}
          text={describeItem(chosen.item).text}
          cancel={() => setEdited(null)}
        />
      )}
    </>
  );
}

function isFromUser(entry: SessionEntry): boolean {
  const item: JsonObject | null = entry.item;
  return item !== null && item.role === "user" && typeof item.content === "string";
}

/** The words of the run that is under way. */
function LiveAnswer({ runId }: { runId: string }) {
  const { words } = useRunEvents(runId, 0);
  return (
    <div class="words" role="status" aria-label="Answer so far">
      {words === "" ? "…" : showUnseen(words.slice(-4000))}
    </div>
  );
}
