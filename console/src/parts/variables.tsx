/** The variables of a workspace: names, types and sizes, never values; and what changed since an earlier version. */

import type { Variable } from "../api/types";
import { formatBytes, formatCount, showUnseen } from "../text";

interface Props {
  variables: readonly Variable[];
  before?: readonly Variable[] | null;
}

export function VariableTable({ variables, before = null }: Props) {
  const known = new Map((before ?? []).map((one) => [one.name, one]));
  const gone = [...known.values()].filter((old) => !variables.some((one) => one.name === old.name));
  return (
    <table class="variables">
      <thead class="visually-hidden">
        <tr>
          <th scope="col">Name</th>
          <th scope="col">Type</th>
          <th scope="col">Size</th>
        </tr>
      </thead>
      <tbody>
        {variables.map((one) => (
          <Row key={one.name} variable={one} change={before === null ? "" : compare(known.get(one.name), one)} />
        ))}
        {gone.map((one) => (
          <Row key={one.name} variable={one} change="removed" />
        ))}
      </tbody>
    </table>
  );
}

function Row({ variable, change }: { variable: Variable; change: string }) {
  const { name, type, shape, length, size } = variable;
  const extent = shape ? shape.join(" × ") : length !== undefined ? `${formatCount(length)} long` : "";
  return (
    <tr class={change && `variable-${change}`}>
      <th scope="row">
        <code>{showUnseen(name)}</code>
        {change && <span class="tag">{change}</span>}
      </th>
      <td>
        {showUnseen(type)} <span class="quiet">{extent}</span>
      </td>
      <td class="number quiet">{size ? formatBytes(size) : ""}</td>
    </tr>
  );
}

/** Values are not known: a variable of the same type and size may have another value all the same. */
function compare(old: Variable | undefined, now: Variable): string {
  if (old === undefined) return "new";
  return JSON.stringify(old) === JSON.stringify(now) ? "" : "changed";
}
