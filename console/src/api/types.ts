/** What the API sends. The names are those of /openapi.json. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type JsonObject = { [name: string]: Json };

export interface Page<T> {
  items: T[];
  next: string | null;
}

export type RunStatus = "queued" | "running" | "waiting" | "completed" | "failed" | "cancelled";
export const RUN_STATUSES: RunStatus[] = ["queued", "running", "waiting", "completed", "failed", "cancelled"];

export interface RunProblem {
  code: string;
  message: string;
  type?: string | null;
}

export interface RunInfo {
  run_id: string;
  agent: string;
  session_id: string | null;
  status: RunStatus;
  reason: RunProblem | null;
  key: string | null;
  parent: string | null;
  steps: number;
  created_at: number;
  updated_at: number;
  locked: boolean;
}

export interface RunOutcome {
  run_id: string;
  status: RunStatus;
  final_output: Json;
  approvals: Approval[];
  error: RunProblem | null;
}

export interface RunEvent {
  seq: number | null;
  run_id: string;
  type: string;
  data: JsonObject;
  at: number;
  live: boolean;
  position: string | null;
}

export type ApprovalStatus = "pending" | "approved" | "rejected" | "done" | "expired" | "withdrawn";

/** Fields with their default value are left out by the server. */
export interface Approval {
  id: string;
  kind: "approval" | "uncertain";
  status: ApprovalStatus;
  run_id: string;
  session_id: string | null;
  agent: string;
  tool: string;
  call_id: string;
  arguments: string;
  digest: string;
  requested_at: number;
  idempotency_key?: string;
  expires_at?: number;
  decided_by?: string;
  decided_at?: number;
  message?: string;
  edited?: string;
  output?: string;
  always?: boolean;
  locked?: boolean;
}

export type Verdict = "approve" | "reject" | "done" | "again";

export interface Decision {
  decision: Verdict;
  arguments?: Json;
  message?: string;
  output?: Json;
  always?: boolean;
}

export interface DecisionResult {
  approval_id: string;
  status?: ApprovalStatus;
  code?: string;
  detail?: string;
}

export interface ToolInfo {
  name: string;
  description: string;
  schema: JsonObject | null;
}

export interface AgentInfo {
  name: string;
  description: string | null;
  model: string | null;
  tools: ToolInfo[];
  handoffs: string[];
}

export interface Head {
  version: number;
  length: number;
}

export interface SessionInfo {
  session_id: string;
  owner: string | null;
  metadata: JsonObject;
  head: Head;
  generation: number;
  encrypted: boolean;
  created_at: number;
  updated_at: number;
}

export interface SessionBranch {
  session_id: string;
  shared: number;
  head: Head;
  updated_at: number;
}

export interface SearchHit {
  session_id: string;
  position: number;
  item: JsonObject;
  [name: string]: Json;
}

export interface ServerInfo {
  version: string;
  started_at: number;
  draining: boolean;
  subject: string;
  role: Role;
  owner: string;
  runs_python: boolean;
  realtime_agents: string[];
}

export type Role = "viewer" | "user" | "approver" | "operator" | "admin";
export const ROLES: Role[] = ["viewer", "user", "approver", "operator", "admin"];

export function mayDo(info: ServerInfo | null, role: Role): boolean {
  return info !== null && ROLES.indexOf(info.role) >= ROLES.indexOf(role);
}

export interface RunStep {
  run_id: string;
  step: number;
  steps: number;
  agent: string;
  agent_path: string;
  turn: number;
  input: string | JsonObject[];
  items: { item: JsonObject }[];
  calls: JsonObject[];
  context: JsonObject | null;
  usage: JsonObject;
  history_length: number;
  history_generation: number;
  workspace: string | null;
  workspace_version: number;
}

export interface RunStepView {
  run: RunStep;
  workspace: JsonObject | null;
}

export interface SessionStats {
  items: number;
  bytes: number;
  tokens: number;
}

export interface ListedSession extends SessionInfo {
  stats: SessionStats | null;
}

export interface SessionEntry {
  position: number;
  item: JsonObject | null;
  hidden: string | null;
  tokens: number;
}

export interface SessionView {
  head: Head;
  generation: number;
  replaced_at: number | null;
  entries: SessionEntry[];
  tokens: number;
  quarantined: JsonObject[];
}

export interface Generation {
  number: number;
  length: number;
  replaced_at: number;
}

export interface CompactionPreview {
  head: Head;
  replaced: JsonObject[];
  kept: number;
  replaced_tokens: number;
  kept_tokens: number;
  can_summarise: boolean;
}

export interface Overview {
  runs: Record<string, number>;
  counted_up_to: number;
  approvals: number;
  oldest_approval_at: number | null;
  executing: number;
  calls: number;
  cells: number;
  store: { status: string; seconds: number; detail: string | null };
  pools: JsonObject[] | null;
  draining: boolean;
}

export interface ApiKey {
  id: string;
  name: string;
  role: Role;
  owner: string;
  created_at: number;
  expires_at: number | null;
  revoked_at: number | null;
  last_used_at?: number | null;
}

export interface AuditEntry {
  id: string;
  action: string;
  subject: string | null;
  at: number;
  [name: string]: Json;
}

/** Fields with their default value are left out by the server. */
export interface Schedule {
  name: string;
  agent: string;
  cron?: string;
  every?: number;
  timezone?: string;
  created_at: number;
  next_at?: number;
  last_at?: number;
  last_run_id?: string;
  skipped?: number;
  problem?: RunProblem;
  locked?: boolean;
}

/** Fields with their default value are left out by the server. */
export interface Budget {
  name: string;
  tokens?: number;
  cost?: number;
  per?: BudgetPeriod;
  owner?: string;
  agent?: string;
  created_at: number;
  spent?: { tokens?: number; cost?: number; unpriced_tokens?: number };
  locked?: boolean;
}

export type BudgetPeriod = "day" | "month" | "ever";

export interface Webhook {
  id: string;
  url: string | null;
  events: string[];
  private: boolean;
  created_at: number;
}

export interface WebhookDelivery {
  id: string;
  event: string;
  body: string;
  created_at: number;
  status: "pending" | "delivered" | "failed";
  attempts: number;
  next_at: number | null;
  response_status: number | null;
  problem: string | null;
}

export interface PoolInfo {
  idle: number;
  starting: number;
  leased: number;
  waiting: number;
  breaker: { failures: number; blocked_for: number };
  metrics: Record<string, number>;
}

export interface WorkerInfo {
  pool: number;
  place: "idle" | "leased";
  worker_id: string;
  state: string;
  created_at: number;
  last_used_at: number;
  executions: number;
  errors: number;
  memory_bytes: number;
  cpu_percent: number;
  variables: number;
}

export interface SandboxInfo {
  pool: number;
  level: string | null;
  required: string | null;
  notes: string[];
  reasons: Record<string, string>;
}

export interface WorkspaceRecord {
  key: string;
  version: number;
  created_at: number;
  updated_at: number;
}

/** Fields with their default value are left out by the server. */
export interface Variable {
  name: string;
  type: string;
  size?: number;
  length?: number;
  shape?: number[];
}

export interface WorkspaceFile {
  path: string;
  size: number;
}

export interface Workspace {
  key: string;
  version: number;
  variables: Variable[];
  files: WorkspaceFile[];
  unkept: Record<string, string>;
  size: number;
  pending: number[];
}

export interface VersionInfo {
  version: number;
  parent: number;
  run_id: string;
  call_id: string;
  checkpoint: string | null;
  size: number;
  created_at: number;
}

export interface CellInfo {
  cell_id: string;
  session_id: string;
  status: "queued" | "running" | "waiting" | "done" | "failed";
  source: string;
  subject: string;
  started_at: number;
  result: JsonObject | null;
  notes: string[];
  code: string | null;
  detail: string | null;
  shortened: boolean;
}

export interface CallInfo {
  call_id: string;
  agent: string;
  session_id: string;
  subject: string;
  connected: boolean;
  started_at: number;
}
