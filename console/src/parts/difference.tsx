/** What changed between two JSON values, path by path. */

import { showUnseen, summarize } from "../text";

export interface Change {
  path: string;
  before?: unknown;
  after?: unknown;
}

const MOST = 500;

export function findChanges(before: unknown, after: unknown, path = "", found: Change[] = []): Change[] {
  if (Object.is(before, after) || found.length >= MOST) return found;
  if (isContainer(before) && isContainer(after) && Array.isArray(before) === Array.isArray(after)) {
    const [old, now] = [before as Record<string, unknown>, after as Record<string, unknown>];
    for (const name of new Set([...Object.keys(old), ...Object.keys(now)])) {
      const inner = Array.isArray(before) ? `${path}[${name}]` : path === "" ? name : `${path}.${name}`;
      if (!Object.hasOwn(old, name)) found.push({ path: inner, after: now[name] });
      else if (!Object.hasOwn(now, name)) found.push({ path: inner, before: old[name] });
      else findChanges(old[name], now[name], inner, found);
    }
  } else found.push({ path: path || "value", before, after });
  return found;
}

function isContainer(value: unknown): boolean {
  return typeof value === "object" && value !== null;
}

export function Difference({ before, after, label }: { before: unknown; after: unknown; label: string }) {
  const changes = findChanges(before, after);
  if (changes.length === 0) return <p class="quiet">No difference.</p>;
  return (
    <table class="difference" aria-label={label}>
      <tbody>
        {changes.map((one) => (
          <tr key={one.path}>
            <th scope="row">{showUnseen(one.path)}</th>
            <td>
              {"before" in one && <del>{show(one.before)}</del>}
              {"before" in one && "after" in one && " → "}
              {"after" in one && <ins>{show(one.after)}</ins>}
            </td>
          </tr>
        ))}
        {changes.length >= MOST && (
          <tr>
            <td colSpan={2}>and more</td>
          </tr>
        )}
      </tbody>
    </table>
  );
}

function show(value: unknown): string {
  return summarize(JSON.stringify(value) ?? "nothing", 300);
}
