/** The lanes of the versions of a workspace in the picture of their tree. */

export interface Branching {
  version: number;
  parent: number;
}

export interface Row<T> {
  version: T;
  lane: number;
  /** The lanes with a line from above to below this row. */
  passing: number[];
  /** The lanes above whose line ends in this version: those of its children. */
  joining: number[];
  hasParent: boolean;
}

/** Return one row for each version, newest first. A child without siblings stays in the lane of its parent. */
export function placeVersions<T extends Branching>(versions: readonly T[]): Row<T>[] {
  const known = new Set(versions.map((one) => one.version));
  const waiting: (number | null)[] = []; // by lane: the version that its line leads to
  const rows: Row<T>[] = [];
  for (const version of [...versions].sort((a, b) => b.version - a.version)) {
    const joining = waiting.flatMap((wanted, lane) => (wanted === version.version ? [lane] : []));
    const free = waiting.indexOf(null);
    const lane = joining[0] ?? (free < 0 ? waiting.length : free);
    for (const one of joining) waiting[one] = null;
    const passing = waiting.flatMap((wanted, one) => (wanted === null ? [] : [one]));
    const hasParent = known.has(version.parent);
    waiting[lane] = hasParent ? version.parent : null;
    rows.push({ version, lane, passing, joining, hasParent });
  }
  return rows;
}
