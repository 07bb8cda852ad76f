/** The microphone on the audio thread: 16 bit samples at 24 kHz, in pieces of 40 milliseconds. */

declare const sampleRate: number;
declare function registerProcessor(name: string, processor: new () => AudioWorkletProcessor): void;
declare class AudioWorkletProcessor {
  readonly port: MessagePort;
}

const RATE = 24_000;
const PIECE = (RATE * 40) / 1000;

class Capture extends AudioWorkletProcessor {
  private readonly step = sampleRate / RATE;
  private piece = new Int16Array(PIECE);
  private filled = 0;
  private sum = 0;
  private count = 0;
  private position = 0;

  /** Each sample is the mean of those of the microphone in its time. */
  process(inputs: Float32Array[][]): boolean {
    for (const sample of inputs[0]?.[0] ?? []) {
      this.sum += sample;
      this.count += 1;
      this.position += 1;
      while (this.position >= this.step) {
        this.position -= this.step;
        this.add(this.count > 0 ? this.sum / this.count : sample);
        this.sum = 0;
        this.count = 0;
      }
    }
    return true;
  }

  private add(sample: number): void {
    this.piece[this.filled] = Math.max(-1, Math.min(1, sample)) * 32767;
    this.filled += 1;
    if (this.filled < PIECE) return;
    this.port.postMessage(this.piece.buffer, [this.piece.buffer]);
    this.piece = new Int16Array(PIECE);
    this.filled = 0;
  }
}

registerProcessor("capture", Capture);
