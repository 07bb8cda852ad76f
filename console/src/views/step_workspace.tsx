/** Variables and files of a run at a step, and what changed in them since the step before. */

import type { JsonObject, RunStepView, Variable, WorkspaceFile } from "../api/types";
import { Empty } from "../parts/basic";
import { VariableTable } from "../parts/variables";
import { makeHref } from "../router";
import { formatBytes, showUnseen } from "../text";

interface Props {
  step: RunStepView;
  before: RunStepView | null;
  sessionId: string | null;
}

export function StepWorkspace({ step, before, sessionId }: Props) {
  if (step.workspace === null) {
    return (
      <Empty title="No workspace at this step.">
        <p>A run has one after its first call of a Python tool.</p>
      </Empty>
    );
  }
  const version = step.run.workspace_version;
  const variables = readList<Variable>(step.workspace, "variables");
  const pending = readList<number>(step.workspace, "pending");
  const old = before === null ? null : before.workspace;
  return (
    <>
      <p class="quiet">
        Version {version}
        {sessionId !== null && (
          <>
            {" · "}
            <a href={makeHref(["workers", sessionId], { version, tab: "versions" })}>in its notebook</a>
          </>
        )}
      </p>
      {pending.length > 0 && (
        <p class="quiet">
          As they were saved before: what {pending.length === 1 ? "version" : "versions"} {pending.join(", ")} changed
          was not saved, and is made again when it is needed.
        </p>
      )}
      <h3>Variables</h3>
      {variables.length === 0 && <p class="quiet">None.</p>}
      <VariableTable variables={variables} before={before && readList<Variable>(old, "variables")} />
      <h3>Files</h3>
      <FileChanges
        files={readList<WorkspaceFile>(step.workspace, "files")}
        before={before && readList<WorkspaceFile>(old, "files")}
      />
    </>
  );
}

function FileChanges({ files, before }: { files: WorkspaceFile[]; before: WorkspaceFile[] | null }) {
  const known = new Map((before ?? []).map((one) => [one.path, one.size]));
  const gone = (before ?? []).filter((old) => !files.some((one) => one.path === old.path));
  if (files.length + gone.length === 0) return <p class="quiet">None.</p>;
  const describe = ({ path, size }: WorkspaceFile) => {
    if (before === null) return "";
    const old = known.get(path);
    return old === undefined ? "new" : old === size ? "" : "changed";
  };
  return (
    <ul class="files">
      {files.map((file) => (
        <File key={file.path} file={file} change={describe(file)} />
      ))}
      {gone.map((file) => (
        <File key={file.path} file={file} change="removed" />
      ))}
    </ul>
  );
}

function File({ file, change }: { file: WorkspaceFile; change: string }) {
  return (
    <li class={change && `variable-${change}`}>
      <span class="file-name">
        {showUnseen(file.path)} {change && <span class="tag">{change}</span>}
      </span>
      <span class="quiet">{formatBytes(file.size)}</span>
    </li>
  );
}

function readList<T>(workspace: JsonObject | null, name: string): T[] {
  const found = workspace?.[name];
  return Array.isArray(found) ? (found as T[]) : [];
}
