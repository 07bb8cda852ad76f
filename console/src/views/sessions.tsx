/** The list of sessions, and the search in what they contain. */

import { useState } from "preact/hooks";
import { useQuery } from "../api/query";
import type { ListedSession, Page, SearchHit } from "../api/types";
import { Age, Empty, Loading, Problem } from "../parts/basic";
import { describeItem } from "../parts/items";
import { makeHref, navigate, type Route } from "../router";
import { formatBytes, formatCount, showUnseen, summarize } from "../text";

const REFRESH = 5000;

export function SessionsView({ route }: { route: Route }) {
  const { query, words, after } = route.query;
  return (
    <section class="page">
      <h1>Sessions</h1>
      <Search key={`${query} ${words}`} query={query ?? ""} words={words ?? ""} />
      {words ? <Hits words={words} /> : <SessionTable query={query ?? null} after={after ?? null} />}
    </section>
  );
}

function Search({ query, words }: { query: string; words: string }) {
  const [text, setText] = useState(words || query);
  const [isInside, setInside] = useState(words !== "");
  const submit = (event: Event) => {
    event.preventDefault();
    navigate(["sessions"], isInside ? { words: text.trim() } : { query: text.trim() });
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

function SessionTable({ query, after }: { query: string | null; after: string | null }) {
  const asked = { query, after, limit: 50, stats: true };
  const { data, problem, refresh } = useQuery<Page<ListedSession>>("/sessions", asked, REFRESH);
  if (problem !== null && data === null) return <Problem problem={problem} retry={refresh} />;
  if (data === null) return <Loading />;
  if (data.items.length === 0) {
    return (
      <Empty title={query ? "No session matches." : "No sessions yet."}>
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
              <td>{showUnseen(one.owner ?? "")}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {data.next && <a href={makeHref(["sessions"], { query, after: data.next })}>older sessions</a>}
    </>
  );
}

function Hits({ words }: { words: string }) {
  const { data, problem } = useQuery<SearchHit[]>("/sessions/search", { q: words, limit: 50 });
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
