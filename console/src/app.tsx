/** The frame of all views: navigation, connection, sign-in. */

import type { ComponentChildren } from "preact";
import { useEffect, useErrorBoundary } from "preact/hooks";
import { get, key, signedOut } from "./api/client";
import { epoch } from "./api/query";
import type { ServerInfo } from "./api/types";
import { Empty } from "./parts/basic";
import { makeHref, type Route, useRoute } from "./router";
import { approvals, connection, followApprovals, listWaiting } from "./state/approvals";
import { useNow } from "./state/clock";
import { server } from "./state/server";
import { useStore } from "./state/store";
import { chooseTheme, type Theme, theme } from "./state/theme";
import { formatDuration, showUnseen } from "./text";
import { ApprovalsView } from "./views/approvals";
import { CallsView } from "./views/calls";
import { NotebookView } from "./views/notebook";
import { OverviewView } from "./views/overview";
import { RunView } from "./views/run";
import { RunsView } from "./views/runs";
import { SessionPage } from "./views/session";
import { SessionsView } from "./views/sessions";
import { SettingsView } from "./views/settings";
import { SignInView } from "./views/sign_in";
import { WorkersView } from "./views/workers";

interface View {
  name: string;
  title: string;
  show(route: Route): ComponentChildren;
}

const VIEWS: View[] = [
  { name: "overview", title: "Overview", show: () => <OverviewView /> },
  { name: "approvals", title: "Approvals", show: (route) => <ApprovalsView route={route} /> },
  { name: "runs", title: "Runs", show: showRuns },
  { name: "sessions", title: "Sessions", show: showSessions },
  { name: "calls", title: "Calls", show: (route) => <CallsView route={route} /> },
  { name: "workers", title: "Workers", show: showWorkers },
  { name: "settings", title: "Settings", show: (route) => <SettingsView route={route} /> },
];

function showSessions(route: Route) {
  const id = route.parts[1];
  return id === undefined ? <SessionsView route={route} /> : <SessionPage key={id} sessionId={id} route={route} />;
}

function showRuns(route: Route) {
  const runId = route.parts[1];
  return runId === undefined ? <RunsView route={route} /> : <RunView key={runId} runId={runId} route={route} />;
}

function showWorkers(route: Route) {
  const id = route.parts[1];
  return id === undefined ? <WorkersView route={route} /> : <NotebookView key={id} sessionId={id} route={route} />;
}

export function App() {
  const refused = useStore(signedOut);
  const credential = useStore(key);
  useEffect(() => {
    if (refused !== null) return;
    const controller = new AbortController();
    approvals.set(null);
    void followApprovals(controller.signal);
    return () => controller.abort();
  }, [refused, credential]);
  return refused !== null ? <SignInView problem={refused} /> : <Shell />;
}

function Shell() {
  const route = useRoute();
  const current = VIEWS.find((one) => one.name === (route.parts[0] ?? VIEWS[0]?.name));
  useServerInfo();
  const waiting = listWaiting(useStore(approvals)).length;
  useEffect(() => {
    document.title = `${waiting > 0 ? `(${waiting}) ` : ""}${current?.title ?? "Not found"} · standfast`;
  }, [waiting, current]);
  useEffect(() => {
    // On a narrow screen, the navigation is scrolled.
    document.querySelector("nav [aria-current]")?.scrollIntoView?.({ block: "nearest", inline: "nearest" });
  }, [current]);
  return (
    <div class="shell">
      <button type="button" class="skip" onClick={() => document.getElementById("main")?.focus()}>
        Skip to content
      </button>
      <header class="side">
        <a class="brand" href="#/">
          standfast
        </a>
        <nav aria-label="Views">
          {VIEWS.map((one) => (
            <a key={one.name} href={makeHref([one.name])} aria-current={one === current ? "page" : undefined}>
              {one.title}
              {one.name === "approvals" && waiting > 0 && (
                <span class="badge">
                  {waiting}
                  <span class="visually-hidden"> waiting</span>
                </span>
              )}
            </a>
          ))}
        </nav>
        <SideFooter />
      </header>
      <main id="main" tabIndex={-1}>
        <ConnectionBanner />
        <Guard key={current?.name ?? "none"}>
          {current?.show(route) ?? (
            <Empty title="There is no such page.">
              <p>
                The address may be that of another version. <a href="#/">Go to the start</a>.
              </p>
            </Empty>
          )}
        </Guard>
      </main>
    </div>
  );
}

/** A fault of one view must not take the others away. */
function Guard({ children }: { children: ComponentChildren }) {
  const [fault, reset] = useErrorBoundary((problem) => console.error(problem));
  if (!fault) return <>{children}</>;
  return (
    <Empty title="This view failed.">
      <p>{showUnseen(String(fault))}</p>
      <button type="button" onClick={reset}>
        Show it again
      </button>
    </Empty>
  );
}

function useServerInfo() {
  const current = useStore(epoch);
  const credential = useStore(key);
  useEffect(() => {
    get<ServerInfo>("/info").then(
      (info) => server.set(info),
      () => undefined, // the banner and the sign-in say so
    );
  }, [current, credential]);
}

function SideFooter() {
  const info = useStore(server);
  const chosen = useStore(theme);
  return (
    <div class="side-footer">
      {info && (
        <p class="quiet" title={`owner ${info.owner}`}>
          {showUnseen(info.subject)} · {info.role}
        </p>
      )}
      <label class="theme">
        <span class="visually-hidden">Colours</span>
        <select value={chosen} onChange={(event) => chooseTheme(event.currentTarget.value as Theme)}>
          <option value="system">as the system</option>
          <option value="light">light</option>
          <option value="dark">dark</option>
        </select>
      </label>
    </div>
  );
}

function ConnectionBanner() {
  const state = useStore(connection);
  const now = useNow();
  if (state.kind === "refused" && state.problem.status !== 401) {
    return (
      <div class="banner" role="alert">
        No live updates: {state.problem.detail}
      </div>
    );
  }
  if (state.kind !== "lost") return null;
  return (
    <div class="banner" role="status">
      The server does not answer. What you see is {formatDuration(Math.max(1, Math.round(now - state.since / 1000)))}{" "}
      old. Trying again.
    </div>
  );
}
