/** The microphone, as pieces of samples for a call. */

import worklet from "./capture.worklet.ts?worker&url";

export class Microphone {
  private constructor(
    private readonly context: AudioContext,
    private readonly stream: MediaStream,
  ) {}

  /** Ask for the microphone, and pass what it hears to `receive` until it is closed. */
  static async open(receive: (samples: Int16Array) => void): Promise<Microphone> {
    const audio = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };
    const stream = await navigator.mediaDevices.getUserMedia({ audio });
    const context = new AudioContext();
    await context.audioWorklet.addModule(worklet);
    const node = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0, channelCount: 1 });
    node.port.onmessage = (event: MessageEvent<ArrayBuffer>) => receive(new Int16Array(event.data));
    context.createMediaStreamSource(stream).connect(node);
    await context.resume();
    return new Microphone(context, stream);
  }

  close(): void {
    for (const track of this.stream.getTracks()) track.stop();
    void this.context.close();
  }
}

/** What to do when there is no microphone. */
export function describeMicrophoneError(problem: unknown): string {
  const name = problem instanceof Error ? problem.name : "";
  if (name === "NotAllowedError") return "The browser does not allow the microphone: allow it for this page, or write.";
  if (name === "NotFoundError") return "There is no microphone: connect one, or write.";
  if (navigator.mediaDevices === undefined) return "Browsers allow a microphone on this machine or over https only.";
  return problem instanceof Error ? problem.message : String(problem);
}
