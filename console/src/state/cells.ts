/** The cells of one workspace, and what those that run print and show. */

import { useEffect, useRef, useState } from "preact/hooks";
import { get, segment } from "../api/client";
import { follow } from "../api/events";
import { useQuery } from "../api/query";
import type { CellInfo, JsonObject } from "../api/types";
import { addMessage, type Output, readResult } from "../parts/outputs";

export interface KnownCell {
  info: CellInfo;
  /** The process that ran it has ended: no other one knows it. */
  isForgotten: boolean;
}

export interface Cells {
  cells: KnownCell[] | null;
  problem: unknown;
  refresh(): void;
}

const OFTEN = 500;
const SELDOM = 3000;

export const isOpen = ({ status }: CellInfo) => status !== "done" && status !== "failed";

/** Return the cells of a session in the order of their starts, also those that the server has forgotten since. */
export function useCells(sessionId: string): Cells {
  const known = useRef(new Map<string, KnownCell>());
  const [every, setEvery] = useState(OFTEN);
  const { data, problem, refresh } = useQuery<CellInfo[]>(`/sessions/${segment(sessionId)}/workspace/cells`, {}, every);
  const wanted = data?.some(isOpen) ? OFTEN : SELDOM;
  useEffect(() => setEvery(wanted), [wanted]);
  if (data !== null) {
    for (const one of known.current.values()) one.isForgotten = true;
    for (const info of data) known.current.set(info.cell_id, { info, isForgotten: false });
  }
  const cells = [...known.current.values()].sort((a, b) => a.info.started_at - b.info.started_at);
  return { cells: data === null && cells.length === 0 ? null : cells, problem, refresh };
}

/** Return the whole cell: a list of cells has long ones shortened. */
export function useWholeCell(info: CellInfo): CellInfo {
  const [whole, setWhole] = useState<CellInfo | null>(null);
  const isMissing = info.shortened && !isOpen(info);
  useEffect(() => {
    if (!isMissing) return;
    const controller = new AbortController();
    const path = `/sessions/${segment(info.session_id)}/workspace/cells/${segment(info.cell_id)}`;
    get<CellInfo>(path, {}, controller.signal).then(setWhole, () => undefined); // what the list has is shown
    return () => controller.abort();
  }, [info.cell_id, isMissing]);
  return isMissing && whole !== null ? whole : info;
}

/** Return the outputs of a cell: live while it runs. What was shown live stays when it has ended. */
export function useOutputs(info: CellInfo, refresh: () => void): readonly Output[] {
  const [live, setLive] = useState<readonly Output[] | null>(null);
  const outputs = useRef<readonly Output[]>([]);
  const isRunning = info.status === "running" || info.status === "waiting";
  const isFollowed = isRunning || live !== null; // to the end of its messages, which may come after its own
  useEffect(() => {
    if (!isFollowed) return;
    const controller = new AbortController();
    let frame = 0;
    const draw = () => {
      frame = 0;
      setLive(outputs.current);
    };
    void follow(`/sessions/${segment(info.session_id)}/workspace/cells/${segment(info.cell_id)}/events`, {
      signal: controller.signal,
      onEvents: (events) => {
        for (const one of events) outputs.current = addMessage(outputs.current, JSON.parse(one.data) as JsonObject);
        if (frame === 0) frame = requestAnimationFrame(draw);
      },
      onState: ({ kind }) => {
        if (kind === "ended") refresh();
      },
    });
    return () => {
      controller.abort();
      cancelAnimationFrame(frame);
      outputs.current = [];
    };
  }, [info.cell_id, isFollowed]);
  return live ?? readResult(info);
}
