/** The versions of a workspace as a tree: going back makes a branch, and nothing is lost. */

import { useMemo } from "preact/hooks";
import type { VersionInfo } from "../api/types";
import { makeHref } from "../router";
import { summarize } from "../text";
import { Age } from "./basic";
import { placeVersions, type Row } from "./lanes";

const LANE = 14;
const HEIGHT = 34;

interface Props {
  versions: readonly VersionInfo[];
  chosen: number;
  choose(version: number): void;
}

export function VersionTree({ versions, chosen, choose }: Props) {
  const rows = useMemo(() => placeVersions(versions), [versions]);
  const lanes = Math.max(1, ...rows.map((one) => one.lane + 1));
  return (
    <ol class="versions" reversed aria-label="Versions, the latest first">
      {rows.map((row) => (
        <VersionRow key={row.version.version} {...{ row, lanes, choose }} isChosen={row.version.version === chosen} />
      ))}
    </ol>
  );
}

interface RowProps {
  row: Row<VersionInfo>;
  lanes: number;
  isChosen: boolean;
  choose(version: number): void;
}

function VersionRow({ row, lanes, isChosen, choose }: RowProps) {
  const { version, parent, run_id, created_at, checkpoint } = row.version;
  return (
    <li class={isChosen ? "version current" : "version"}>
      <Lines row={row} lanes={lanes} />
      <button type="button" class="link" aria-pressed={isChosen} onClick={() => choose(version)}>
        {version}
      </button>
      <span class="version-text">
        {run_id ? <a href={makeHref(["runs", run_id])}>{summarize(run_id, 16)}</a> : "by a person"}
        {parent !== version - 1 && <span class="quiet"> from {parent === 0 ? "nothing" : parent}</span>}
        {checkpoint === null && (
          <span class="quiet" title="It was not saved: its cell is run again when it is needed">
            {" "}
            · replayed
          </span>
        )}
      </span>
      <Age at={created_at} />
    </li>
  );
}

function Lines({ row, lanes }: { row: Row<VersionInfo>; lanes: number }) {
  const x = (lane: number) => lane * LANE + LANE / 2;
  const middle = HEIGHT / 2;
  return (
    <svg class="version-lines" width={lanes * LANE} height={HEIGHT} aria-hidden="true">
      {row.passing.map((lane) => (
        <path key={`p${lane}`} d={`M${x(lane)} 0V${HEIGHT}`} />
      ))}
      {row.joining.map((lane) => (
        <path
          key={`j${lane}`}
          d={`M${x(lane)} 0C${x(lane)} ${middle} ${x(row.lane)} ${middle / 2} ${x(row.lane)} ${middle}`}
        />
      ))}
      {row.hasParent && <path d={`M${x(row.lane)} ${middle}V${HEIGHT}`} />}
      <circle cx={x(row.lane)} cy={middle} r={4} />
    </svg>
  );
}
