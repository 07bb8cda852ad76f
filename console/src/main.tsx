import { render } from "preact";
import { App } from "./app";
import { applyTheme } from "./state/theme";
import "./style/base.css";
import "./style/parts.css";
import "./style/inbox.css";
import "./style/runs.css";
import "./style/sessions.css";
import "./style/overview.css";
import "./style/workers.css";
import "./style/calls.css";

applyTheme();
const root = document.getElementById("app");
if (root !== null) render(<App />, root);
