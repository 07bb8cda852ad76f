"use strict";
// One WebSocket carries the call: audio and messages, see "Calls" in docs/how-to/server.md.

const RATE = 24000;
const LINES = ["My last bill seems too high.", "Read me my card number.", "I want 20 euros back.", "The router blinks red."];
const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token") ?? "";
history.replaceState(null, "", location.pathname); // the token leaves the address bar

let socket, speaker, microphone, playsUntil = 0;
const playing = new Set();
const items = new Map(); // the conversation: elements by the ids of their items

const send = (message) => socket?.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));

function make(tag, text, className = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  element.className = className;
  return element;
}

const note = (text) => $("events").append(make("li", text));

// --- audio ---------------------------------------------------------------------------------------

function play({ data, item_id, content_index }) {
  const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
  const samples = Float32Array.from(new Int16Array(bytes.buffer), (value) => value / 32768);
  if (!samples.length) return;
  const buffer = speaker.createBuffer(1, samples.length, RATE);
  buffer.copyToChannel(samples, 0);
  const chunk = speaker.createBufferSource();
  chunk.buffer = buffer;
  chunk.connect(speaker.destination);
  chunk.onended = () => {
    // Only the page knows what was played: an interrupted answer is kept as far as it was heard.
    if (playing.delete(chunk)) send({ type: "played", item_id, content_index, ms: buffer.duration * 1000 });
  };
  playsUntil = Math.max(playsUntil, speaker.currentTime);
  chunk.start(playsUntil);
  playsUntil += buffer.duration;
  playing.add(chunk);
}

function stopPlayback() {
  const chunks = [...playing];
  playing.clear();
  playsUntil = 0;
  for (const chunk of chunks) chunk.stop();
}

async function record() {
  microphone = await navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: true } });
  await speaker.audioWorklet.addModule("recorder.js");
  const node = new AudioWorkletNode(speaker, "recorder");
  let samples = [];
  node.port.onmessage = ({ data }) => {
    samples.push(...data);
    if (samples.length < RATE / 25) return; // 40 ms
    const pcm = Int16Array.from(samples, (value) => Math.max(-1, Math.min(1, value)) * 32767);
    samples = [];
    if (socket.readyState === WebSocket.OPEN) socket.send(pcm.buffer);
  };
  speaker.createMediaStreamSource(microphone).connect(node);
}

// --- the conversation ----------------------------------------------------------------------------

function show(item) {
  const said = item.content?.map((part) => part.transcript ?? part.text ?? "").join(" ").trim();
  const text = item.type === "message" ? said : `${item.name}(${item.arguments})${item.output ? ` → ${item.output}` : ""}`;
  const name = item.type === "message" ? item.role : "tool";
  let line = items.get(item.item_id);
  if (!line) items.set(item.item_id, (line = make("li", "")));
  line.textContent = text;
  line.className = name;
  if (text && name !== "system") $("log").append(line);
  $("log").scrollTop = $("log").scrollHeight;
}

function ask({ call_id, tool, arguments: values }) {
  const card = make("div", "", "card");
  card.id = `question-${call_id}`;
  card.append(make("p", "May the agent call"), make("code", `${tool}(${values})`));
  const buttons = make("p", "", "row");
  for (const decision of ["approve", "reject"]) {
    const button = make("button", decision);
    button.onclick = () => {
      send({ type: "decide", call_id, decision });
      card.remove();
    };
    buttons.append(button);
  }
  card.append(buttons);
  $("questions").append(card);
}

const HANDLERS = {
  call: ({ agent }) => ($("status").textContent = `connected to ${agent}`),
  audio: play,
  audio_interrupted: stopPlayback,
  agent_changed: ({ from_agent, to_agent }) => {
    note(`${from_agent} hands off to ${to_agent}`);
    $("status").textContent = `connected to ${to_agent}`;
  },
  tool_end: ({ agent, tool }) => note(`${agent} has called ${tool}`),
  tool_approval_required: ask,
  tool_approval_expired: ({ call_id }) => $(`question-${call_id}`)?.remove(),
  guardrail_tripped: () => note("a guardrail stopped an answer before it was played"),
  history_updated: ({ items: changed, removed }) => {
    for (const id of removed) {
      items.get(id)?.remove();
      items.delete(id);
    }
    for (const item of changed) show(item);
  },
  error: ({ message }) => note(`error: ${message}`),
  refused: ({ message }) => note(`refused: ${message}`),
};

function setConnected(connected) {
  $("call").disabled = connected;
  for (const id of ["interrupt", "hang-up", "text"]) $(id).disabled = !connected;
  if (connected) $("text").focus();
}

$("call").onclick = async () => {
  speaker = new AudioContext({ sampleRate: RATE });
  const url = new URL("api/calls?agent=front", location.href);
  url.protocol = url.protocol.replace("http", "ws");
  socket = new WebSocket(url, ["standfast", `bearer.${token}`]);
  socket.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    HANDLERS[message.type]?.(message);
  };
  socket.onopen = () => {
    setConnected(true);
    record().catch((error) => note(`no microphone (${error.message}): write instead`));
  };
  socket.onclose = () => {
    setConnected(false);
    $("status").textContent = "not connected";
    $("questions").replaceChildren();
    stopPlayback();
    for (const track of microphone?.getTracks() ?? []) track.stop();
    speaker.close();
  };
};
$("interrupt").onclick = () => send({ type: "interrupt" });
$("hang-up").onclick = () => send({ type: "hang_up" });

function say(text) {
  if (!text || $("text").disabled) return;
  send({ type: "text", text });
  $("text").value = "";
}
$("say").onsubmit = (event) => {
  event.preventDefault();
  say($("text").value.trim());
};
for (const line of LINES) {
  const button = make("button", line);
  button.type = "button";
  button.onclick = () => say(line);
  $("lines").append(button);
}
