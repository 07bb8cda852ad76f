/** The list of sessions, and the search in what they contain. */

import { useState } from "preact/hooks";
import { useQuery } from "../api/query";
import type { ListedSession, Page, SearchHit } from "../api/types";
import { Age, Empty, Loading, Problem } from "../parts/basic";
import { describeItem } from "../parts/items";
import { makeHref, navigate, type Route } from "../router";
import { formatBytes, formatCount, summarize } from "../text";

const REFRESH = 5000;
const HOUR_MS = 3_600_000;

export function SessionsView({ route }: { route: Route }) {
  const { query, words, after, owner, days } = route.query;
  const filters = { owner: owner ?? null, days: days ?? null };
  return (
    <section class="page">
      <h1>Sessions</h1>
      <Search key={`${query} ${words}`} query={query ?? ""} words={words ?? ""} owner={filters.owner} />
      {words ? (
        <Hits words={words} owner={filters.owner} />
      ) : (
        <>
          <Filters {...filters} query={query ?? null} />
          <SessionTable {...filters} query={query ?? null} after={after ?? null} />
        </>
      )}
    </section>
  );
}

interface ShownSessions {
  query: string | null;
  owner: string | null;
  days: string | null;
}

const PERIODS = [
  [null, "any time"],
  ["1", "today"],
  ["7", "7 days"],
  ["30", "30 days"],
] as const;

/** When sessions were changed last and, for those who see all, whose they are. */
function Filters({ query, owner, days }: ShownSessions) {
  return (
    <nav class="filters" aria-label="Filter">
      {PERIODS.map(([value, title]) => (
        <a
          key={title}
          href={makeHref(["sessions"], { query, owner, days: value })}
          aria-current={days === value ? "true" : undefined}
        >
          {title}
        </a>
      ))}
      {owner !== null && (
        <span class="tag">
          owner {summarize(owner, 40)} <a href={makeHref(["sessions"], { query, days })}>any</a>
        </span>
      )}
    </nav>
  );
}

function Search({ query, words, owner }: { query: string; words: string; owner: string | null }) {
  const [text, setText] = useState(words || query);
  const [isInside, setInside] = useState(words !== "");
  const submit = (event: Event) => {
    event.preventDefault();
    navigate(["sessions"], isInside ? { words: text.trim(), owner } : { query: text.trim(), owner });
  };
  return (
    <form class="search" role="search" onSubmit={submit}>
      <input
        type="search"
        aria-label="Search sessions"
        placeholder={isInside ? "words of a conversation" : "id or metadata"}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <label>
        <input type="checkbox" checked={isInside} onChange={(event) => setInside(event.currentTarget.checked)} /> in
        what was said
      </label>
      <button type="submit">Search</button>
    </form>
  );
}

function SessionTable({ query, owner, days, after }: ShownSessions & { after: string | null }) {
  // Of this hour: an address that changed with the clock would be fetched again and again.
  const since = days === null ? null : Math.floor(Date.now() / HOUR_MS) * 3600 - (Number(days) || 0) * 86_400;
  const asked = { query, owner, since, after, limit: 50, stats: true };
  const { data, problem, refresh } = useQuery<Page<ListedSession>>("/sessions", asked, REFRESH);
  if (problem !== null && data === null) return <Problem problem={problem} retry={refresh} />;
  if (data === null) return <Loading />;
  if (data.items.length === 0) {
    return (
      <Empty title={query || owner || days ? "No session matches." : "No sessions yet."}>
        <p>A session holds the items of one conversation. A run creates its own, or continues the one that it names.</p>
      </Empty>
    );
  }
  return (
    <>
      <table class="list">
        <thead>
          <tr>
            <th scope="col">Session</th>
            <th scope="col">Changed</th>
            <th scope="col">Items</th>
            <th scope="col">Tokens</th>
            <th scope="col">Size</th>
            <th scope="col">Owner</th>
          </tr>
        </thead>
        <tbody>
          {data.items.map((one) => (
            <tr key={one.session_id}>
              <td>
                <a href={makeHref(["sessions", one.session_id])}>{summarize(one.session_id, 60)}</a>
                {one.encrypted && <span class="tag">encrypted</span>}{" "}
                {one.generation > 0 && <span class="tag">rewritten</span>}
              </td>
              <td>
                <Age at={one.updated_at} />
              </td>
              <td class="number">{formatCount(one.head.length)}</td>
              <td class="number">{one.stats ? formatCount(one.stats.tokens) : "unknown"}</td>
              <td class="number">{one.stats ? formatBytes(one.stats.bytes) : "unknown"}</td>
              <td>
                {one.owner !== null && (
                  <a href={makeHref(["sessions"], { query, days, owner: one.owner })}>{summarize(one.owner, 40)}</a>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {data.next && <a href={makeHref(["sessions"], { query, owner, days, after: data.next })}>older sessions</a>}
    </>
  );
}

function Hits({ words, owner }: { words: string; owner: string | null }) {
  const { data, problem } = useQuery<SearchHit[]>("/sessions/search", { q: words, owner, limit: 50 });
  if (problem !== null) return <Problem problem={problem} />;
  if (data === null) return <Loading />;
  if (data.length === 0) {
    return (
      <Empty title="Nothing was found.">
        <p>All words must be in one item; encrypted sessions are not searched.</p>
      </Empty>
    );
  }
  return (
    <ul class="hits">
      {data.map((hit, index) => {
        const { who, text } = describeItem(hit.item);
        return (
          <li key={index}>
            <a href={makeHref(["sessions", hit.session_id])}>{summarize(hit.session_id, 60)}</a>{" "}
            <span class="quiet">
              item {hit.position + 1}, {who}
            </span>
            <div>{summarize(text, 240)}</div>
          </li>
        );
      })}
    </ul>
  );
}
