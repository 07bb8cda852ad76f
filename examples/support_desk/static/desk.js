// The page is built from the events of the server: it looks the same after a reload or a crash of the server.
const el = (id) => document.getElementById(id);
const ask = async (path, body, headers) => {
  const type = { "Content-Type": "application/json" };
  const options = body && { method: "POST", headers: { ...type, ...headers }, body: JSON.stringify(body) };
  const response = await fetch(`/api${path}`, options);
  const data = await response.json();
  if (!response.ok) throw new Error(typeof data.detail === "string" ? data.detail : JSON.stringify(data.detail));
  return data;
};

const conversation = location.hash.slice(1) || crypto.randomUUID();
location.hash = conversation;

// --- the conversation ---------------------------------------------------------------------------------------------


// What the model says may contain characters that reorder or hide text: they are shown as escapes, such as \u202e.
const INVISIBLE = /(?![\n\t\ufe0e\ufe0f])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;
const visible = (text) => String(text).replace(INVISIBLE, (char) => `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`);
const words = (item) => (item.content || []).map((part) => part.text || "").join("");
const exact = (_, value) => {
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) throw new RangeError("it would be shown rounded");
  return value;
};
const fields = (text) => {
  try {
    const value = JSON.parse(text, exact);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null; // shown as it is
  }
};
const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const call = (item) => {
  const given = fields(item.arguments);
  const shown = given ? Object.entries(given).map(([name, value]) => `${name}: ${plain(value)}`).join(", ") : item.arguments;
  return `${item.name}(${shown})`;
};

function follow(runId) {
  const source = new EventSource(`/api/runs/${runId}/events`);
  // Each run has its own list: messages that are sent while an earlier run works or waits appear below it.
  const lines = document.createElement("ol");
  el("log").append(lines);
  const line = (kind, text) => {
    const item = document.createElement("li");
    item.className = kind;
    item.textContent = visible(text);
    lines.append(item);
    el("log").scrollTop = el("log").scrollHeight;
    return item;
  };
  let speaking = null; // the line of a streamed answer
  const show = {
    "run.queued": (data) => line("user", data.input),
    "run.recovered": () => line("note", "Resumed after a crash of the server."),
    "run.failed": (data) => line("note bad", `It failed: ${data.problem?.message ?? "unknown error"}`),
    "model.delta": (data) => {
      if (data.type !== "response.output_text.delta") return;
      speaking ??= line("agent", "");
      speaking.textContent += visible(data.delta);
    },
    "model.answered": (data) => {
      speaking?.remove();
      speaking = null;
      for (const item of data.items) {
        if (item.type === "function_call") line("tool", call(item));
        else if (words(item)) line("agent", words(item));
      }
    },
    "calls.made": (data) => data.items.forEach((item) => line("tool", `→ ${item.output}`)),
    "approval.requested": showQuestions,
    "approval.decided": (data) => {
      const verdicts = { approve: "approved it", reject: "rejected it", done: "reported that it happened", again: "had it done again", expired: "did not decide in time" };
      line("note", `${data.by ?? "Somebody"} ${verdicts[data.verdict]}.`);
      showQuestions();
    },
  };
  source.onopen = () => {
    el("connection").textContent = "connected";
    showQuestions();
  };
  // The browser reconnects by itself and sends the id of the last event.
  source.onerror = () => (el("connection").textContent = "connection lost, trying again …");
  for (const [type, display] of Object.entries(show)) {
    source.addEventListener(type, (message) => display(JSON.parse(message.data).data));
  }
  return new Promise((resolve) => source.addEventListener("end", () => {
    source.close();
    resolve();
  }));
}

let unsent = null; // sent again with the same key, a message starts one run
el("say").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = el("text").value.trim();
  if (!text) return;
  if (unsent?.text !== text) unsent = { text, key: crypto.randomUUID() };
  try {
    const run = { agent: "desk", input: text, session_id: conversation };
    const { run_id } = await ask("/runs", run, { "Idempotency-Key": unsent.key });
    unsent = null;
    el("text").value = "";
    follow(run_id);
  } catch (problem) {
    el("connection").textContent = `not sent: ${problem.message}`;
  }
});

// --- approvals ----------------------------------------------------------------------------------------

async function showQuestions() {
  let pending;
  try {
    pending = (await ask("/approvals?status=pending")).items;
  } catch {
    return; // the server is unreachable; repeated when it is back
  }
  const open = new Set(pending.map((one) => one.id));
  for (const card of [...el("questions").children]) if (!open.has(card.id)) card.remove();
  for (const one of pending) if (!el(one.id)) el("questions").append(question(one));
  el("nothing").hidden = pending.length > 0;
}

function question(approval) {
  const card = el("question").content.cloneNode(true).firstElementChild;
  const uncertain = approval.kind === "uncertain";
  card.id = approval.id;
  card.querySelector("h3").textContent = visible(approval.tool);
  card.querySelector(".why").textContent = uncertain
    ? "The server crashed during this call. It may have happened: check before you decide."
    : `The agent ${approval.agent} wants to do this. You may edit the arguments.`;
  const given = fields(approval.arguments);
  if (!given) card.querySelector(".arguments").append(`The arguments: ${visible(approval.arguments)}`);
  for (const [name, value] of Object.entries(given ?? {})) {
    const field = document.createElement("label");
    const input = document.createElement("input");
    // The prefix keeps an argument called "elements" or "remove" from replacing that property of the form.
    const fieldName = `argument-${name}`;
    Object.assign(input, { name: fieldName, value: visible(plain(value)), disabled: uncertain, autocomplete: "off" });
    if (typeof value === "number") Object.assign(input, { type: "number", step: "any" });
    field.append(visible(name), input);
    card.querySelector(".arguments").append(field);
  }
  const word = card.elements.word;
  word.id = `word-${approval.id}`;
  Object.assign(card.querySelector(".field label"), {
    htmlFor: word.id, textContent: uncertain ? "Its result, if it happened" : "Reason, if you reject",
  });
  const decide = async (decision) => {
    const made = { decision };
    if (decision === "reject" && word.value) made.message = word.value;
    if (decision === "done") made.output = word.value || "It happened.";
    try {
      const edited = decision === "approve" && !uncertain && given ? changed(card, given) : null;
      if (edited) made.arguments = edited;
      await ask(`/approvals/${approval.id}`, made, { "X-Person": encodeURIComponent(el("by").value) });
      await showQuestions();
    } catch (problem) {
      card.querySelector(".problem").textContent = problem.message;
    }
  };
  const choices = uncertain
    ? [["done", "It happened"], ["again", "Do it again"], ["reject", "Do not repeat it"]]
    : [["approve", "Approve"], ["reject", "Reject"]];
  for (const [decision, label] of choices) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: label, className: decision, onclick: () => decide(decision) });
    card.querySelector(".buttons").append(button);
  }
  card.onsubmit = (event) => event.preventDefault();
  return card;
}

function changed(card, given) {
  const now = {};
  for (const [name, value] of Object.entries(given)) {
    const written = card.elements[`argument-${name}`].value;
    const untouched = written === visible(plain(value));
    now[name] = untouched ? value : typeof value === "string" ? written : JSON.parse(written);
  }
  return JSON.stringify(now) === JSON.stringify(given) ? null : now;
}

// --- start, or resume after a reload -------------------------------------------------------------------------------

async function begin() {
  showQuestions();
  setInterval(() => showQuestions().catch(() => {}), 3000); // other conversations may request approvals
  const { items } = await ask(`/runs?session_id=${encodeURIComponent(conversation)}`);
  for (const run of items.reverse()) { // the latest is listed first
    const ended = follow(run.run_id);
    if (["completed", "failed", "cancelled"].includes(run.status)) await ended; // a browser has few connections
  }
}
begin();
