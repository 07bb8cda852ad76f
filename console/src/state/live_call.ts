/** A call that this page holds: its socket, its microphone and its loudspeaker. It continues while other views are shown. */

import { getApiUrl, key, segment } from "../api/client";
import type { JsonObject } from "../api/types";
import { Levels } from "../audio/levels";
import { describeMicrophoneError, Microphone } from "../audio/microphone";
import { decodeSamples, Player } from "../audio/player";
import { addToLog, type CallLog, EMPTY_LOG } from "./call_log";
import { CallRecorder } from "./call_recorder";
import { Store } from "./store";

export type CallState =
  | { kind: "connecting" }
  | { kind: "open" }
  | { kind: "lost"; since: number }
  | { kind: "ended"; reason: string };

/** How long the server keeps a call without its page. */
const RECONNECT_LIMIT = 30_000;
const TAKEN_OVER = 4001;
const PAUSE = 700;
const OLD_MS = 3000;

export class LiveCall {
  readonly log = new Store<CallLog>(EMPTY_LOG);
  readonly state = new Store<CallState>({ kind: "connecting" });
  readonly microphone = new Store<"off" | "on" | "muted">("off");
  readonly problem = new Store<string | null>(null);
  readonly caller = new Levels();
  readonly agent = new Levels();
  readonly recorder = new CallRecorder();
  callId: string | null = null;
  sessionId = "";
  private socket: WebSocket | null = null;
  private device: Microphone | null = null;
  private readonly player = new Player((part, ms) =>
    this.send({ type: "played", item_id: part.itemId, content_index: part.contentIndex, ms }),
  );
  private startedAt = performance.now();

  /** Begin a call of an agent; or, with an id, continue one whose page was closed. */
  constructor(
    agent: string | null,
    private readonly query: Record<string, string | null>,
    callId: string | null = null,
    private readonly onCall: (callId: string) => void = () => undefined,
  ) {
    this.callId = callId;
    this.player.resume();
    this.connect(agent === null ? {} : { agent, ...this.query });
  }

  /** Milliseconds since the call began. */
  get now(): number {
    return performance.now() - this.startedAt;
  }

  private connect(query: Record<string, string | null>): void {
    const path = this.callId === null ? "/calls" : `/calls/${segment(this.callId)}`;
    const url = getApiUrl(path, this.callId === null ? query : { after: this.log.value.lastNumber });
    url.protocol = url.protocol.replace("http", "ws");
    const protocols = key.value === null ? ["standfast"] : ["standfast", `bearer.${key.value}`];
    const socket = new WebSocket(url, protocols);
    this.socket = socket;
    socket.onmessage = (event: MessageEvent<string>) => this.receive(JSON.parse(event.data) as JsonObject);
    socket.onclose = (event) => this.lose(socket, event.code);
  }

  private receive(message: JsonObject): void {
    if (message.type === "call") this.open(message);
    if (message.type === "audio") {
      this.playAudio(message);
    } else if (message.type === "audio_interrupted") {
      this.player.stop();
      this.agent.cut(this.now);
    }
    this.recorder.add("received", message, this.now);
    this.log.set(addToLog(this.log.value, message));
  }

  private playAudio(message: JsonObject): void {
    const samples = decodeSamples(String(message.data));
    const at = Number(message.at) * 1000;
    // Of a call that is continued here, the page before this one has played what is older.
    const isPast = at < this.now - OLD_MS;
    this.agent.add(samples, isPast ? at : this.now);
    const part = { itemId: String(message.item_id), contentIndex: Number(message.content_index) };
    if (!isPast) this.player.play(part, samples);
  }

  private open(message: JsonObject): void {
    const isNew = this.callId === null;
    const age = isNew ? 0 : Math.max(0, Date.now() - Number(message.started_at) * 1000);
    if (this.state.value.kind === "connecting") this.startedAt = performance.now() - age;
    this.callId = String(message.call_id);
    this.sessionId = String(message.session_id);
    this.state.set({ kind: "open" });
    // A call that is connected again must not take the person away from what they are looking at.
    if (isNew) this.onCall(this.callId);
  }

  private lose(socket: WebSocket, code: number): void {
    if (socket !== this.socket || this.state.value.kind === "ended") return;
    if (code === 1000 || code === TAKEN_OVER) {
      this.end(code === TAKEN_OVER ? "another page continues it" : "");
      return;
    }
    if (this.callId === null) {
      this.end("the server refused it, or did not answer");
      return;
    }
    const since = this.state.value.kind === "lost" ? this.state.value.since : Date.now();
    this.state.set({ kind: "lost", since });
    if (Date.now() - since > RECONNECT_LIMIT) this.end("the connection was lost for too long");
    else setTimeout(() => this.state.value.kind === "lost" && this.connect({}), PAUSE);
  }

  private end(reason: string): void {
    this.state.set({ kind: "ended", reason });
    this.device?.close();
    this.device = null;
    this.microphone.set("off");
    this.player.close();
  }

  private send(message: JsonObject): void {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    this.socket.send(JSON.stringify(message));
    if (message.type !== "played") this.recorder.add("sent", message, this.now);
  }

  /** Let the agent hear the microphone. */
  async speak(): Promise<void> {
    this.problem.set(null);
    try {
      this.device ??= await Microphone.open((samples) => this.hear(samples));
      if (this.state.value.kind === "ended") this.device.close();
      else this.microphone.set("on");
    } catch (problem) {
      this.problem.set(describeMicrophoneError(problem));
    }
  }

  mute(): void {
    this.microphone.set("muted");
  }

  private hear(samples: Int16Array): void {
    if (this.microphone.value !== "on" || this.socket?.readyState !== WebSocket.OPEN) return;
    this.caller.add(samples, this.now - (samples.length / 24_000) * 1000);
    this.recorder.addCaller(samples, this.now);
    this.socket.send(samples);
  }

  write(text: string): void {
    this.send({ type: "text", text });
  }

  interrupt(): void {
    this.send({ type: "interrupt" });
  }

  decide(callId: string, decision: "approve" | "reject"): void {
    this.send({ type: "decide", call_id: callId, decision });
  }

  hangUp(): void {
    if (this.state.value.kind === "open") this.send({ type: "hang_up" });
    else this.end("");
  }
}

/** The call of this page, also while another view is shown. */
export const liveCall = new Store<LiveCall | null>(null);
