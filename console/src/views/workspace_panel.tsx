/** What a workspace holds, now or at an earlier version: variables, files, and the tree of its versions. */

import { useEffect, useState } from "preact/hooks";
import { post, remove, segment, send } from "../api/client";
import { useQuery } from "../api/query";
import type { SessionInfo, VersionInfo, Workspace } from "../api/types";
import { Action, Loading, Problem } from "../parts/basic";
import { download } from "../parts/download";
import { VariableTable } from "../parts/variables";
import { VersionTree } from "../parts/version_tree";
import { makeHref, navigate, type Route, replaceQuery } from "../router";
import { formatBytes, showUnseen } from "../text";

const TABS = ["variables", "files", "versions"] as const;

interface Props {
  sessionId: string;
  route: Route;
  current: Workspace | null;
  mayChange: boolean;
  problem: unknown;
  refresh(): void;
}

export function WorkspacePanel({ sessionId, route, current, mayChange, problem, refresh }: Props) {
  const tab = TABS.find((one) => one === route.query.tab) ?? "variables";
  const path = `/sessions/${segment(sessionId)}/workspace`;
  const chosen = Number(route.query.version) || null;
  const at = chosen === current?.version ? null : chosen;
  const earlier = useQuery<Workspace>(at === null ? null : path, { at });
  const shown = at === null ? current : earlier.data;
  return (
    <aside class="workspace" aria-label="Workspace">
      <div class="tabs" role="tablist" aria-label="Workspace">
        {TABS.map((one) => (
          <button
            key={one}
            type="button"
            role="tab"
            aria-selected={tab === one}
            onClick={() => replaceQuery({ tab: one === "variables" ? null : one })}
          >
            {one}
          </button>
        ))}
      </div>
      {at !== null && (
        <p class="why">
          You read version {at}.{" "}
          <button type="button" class="link" onClick={() => replaceQuery({ version: null })}>
            back to now
          </button>
        </p>
      )}
      {problem !== null && <Problem problem={problem} />}
      {earlier.problem !== null && <Problem problem={earlier.problem} />}
      <div role="tabpanel" aria-label={tab}>
        {tab === "versions" ? (
          <Versions {...{ sessionId, path, current, at, mayChange, refresh }} />
        ) : at !== null && shown === null ? (
          earlier.problem === null && <Loading />
        ) : tab === "files" ? (
          <Files {...{ path, workspace: shown, at, refresh }} mayChange={mayChange && at === null} />
        ) : (
          <Variables workspace={shown} />
        )}
      </div>
    </aside>
  );
}

function Variables({ workspace }: { workspace: Workspace | null }) {
  if (workspace === null || workspace.variables.length === 0) return <p class="quiet">None.</p>;
  const unkept = Object.entries(workspace.unkept);
  return (
    <>
      <VariableTable variables={workspace.variables} />
      {workspace.pending.length > 0 && (
        <p class="quiet">
          As of the last save; {workspace.pending.length} later{" "}
          {workspace.pending.length === 1 ? "cell runs" : "cells run"} again if the worker is lost.
        </p>
      )}
      {unkept.map(([name, reason]) => (
        <p class="quiet" key={name}>
          <code>{showUnseen(name)}</code> is not saved: {showUnseen(reason)}
        </p>
      ))}
    </>
  );
}

interface FilesProps {
  path: string;
  workspace: Workspace | null;
  at: number | null;
  mayChange: boolean;
  refresh(): void;
}

function Files({ path, workspace, at, mayChange, refresh }: FilesProps) {
  const [problem, setProblem] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const files = workspace?.files ?? [];
  const upload = async (event: Event & { currentTarget: HTMLInputElement }) => {
    const input = event.currentTarget;
    const form = new FormData();
    for (const file of input.files ?? []) form.append("file", file, file.name);
    setProblem(null);
    setBusy(true);
    try {
      await send("POST", `${path}/files`, { body: form });
      refresh();
    } catch (found) {
      setProblem(found);
    } finally {
      setBusy(false);
      input.value = "";
    }
  };
  const erase = (name: string) => async () => {
    await remove(`${path}/file`, { path: name });
    refresh();
  };
  return (
    <>
      {files.length === 0 && <p class="quiet">None.</p>}
      <ul class="files">
        {files.map((file) => (
          <li key={file.path}>
            <span class="file-name">{showUnseen(file.path)}</span>
            <span class="quiet">{formatBytes(file.size)}</span>
            <Action
              kind="link"
              act={() => download(`${path}/file`, file.path.split("/").at(-1) ?? "file", { path: file.path, at })}
              onProblem={setProblem}
            >
              download
            </Action>
            {mayChange && (
              <Action kind="link" act={erase(file.path)} onProblem={setProblem} title="Earlier versions keep it">
                remove
              </Action>
            )}
          </li>
        ))}
      </ul>
      {mayChange && (
        <label class="upload">
          <span>{isBusy ? "Uploading…" : "Upload files"}</span>
          <input type="file" multiple disabled={isBusy} onChange={upload} />
        </label>
      )}
      {problem !== null && <Problem problem={problem} />}
    </>
  );
}

interface VersionsProps {
  sessionId: string;
  path: string;
  current: Workspace | null;
  at: number | null;
  mayChange: boolean;
  refresh(): void;
}

function Versions({ sessionId, path, current, at, mayChange, refresh }: VersionsProps) {
  const { data, problem, refresh: readAgain } = useQuery<VersionInfo[]>(current === null ? null : `${path}/versions`);
  useEffect(readAgain, [current?.version]);
  const [failure, setFailure] = useState<unknown>(null);
  if (current === null) return <p class="quiet">Each cell, and each call of Python in a run, makes a version.</p>;
  if (problem !== null) return <Problem problem={problem} />;
  if (data === null) return <Loading />;
  const chosen = at ?? current.version;
  const restore = async () => {
    await post(`${path}/restore`, { version: chosen });
    replaceQuery({ version: null });
    refresh();
  };
  const fork = async () => {
    const forked = await post<SessionInfo>(`/sessions/${segment(sessionId)}/fork`);
    // Versions keep their numbers in a fork.
    if (at !== null) await post(`/sessions/${segment(forked.session_id)}/workspace/restore`, { version: at });
    navigate(["workers", forked.session_id], { tab: "versions" });
  };
  return (
    <>
      <VersionTree versions={data} chosen={chosen} choose={(version) => replaceQuery({ version })} />
      {mayChange && (
        <div class="actions">
          <Action act={restore} onProblem={setFailure} disabled={at === null}>
            {at === null ? "Choose a version to go back" : `Go back to version ${at}`}
          </Action>
          <Action act={fork} onProblem={setFailure} title="A fork of the session with these variables and files">
            {at === null ? "Fork" : `Fork version ${at}`}
          </Action>
        </div>
      )}
      <p class="quiet">
        Going back makes a new version: nothing is lost.{" "}
        <a href={makeHref(["sessions", sessionId])}>The conversation</a> stays as it is.
      </p>
      {failure !== null && <Problem problem={failure} />}
    </>
  );
}
