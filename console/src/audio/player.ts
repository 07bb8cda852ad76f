/** Plays what an agent says, and knows how much of it was heard. */

export const RATE = 24_000;
const REPORT_MS = 100;
/** Silence before the first piece, so that the next ones arrive before they are needed. */
const LEAD_SECONDS = 0.06;

export interface Part {
  itemId: string;
  contentIndex: number;
}

interface Piece extends Part {
  source: AudioBufferSourceNode;
  start: number;
  end: number;
  /** Seconds of it that were reported as played. */
  reported: number;
}

export class Player {
  private readonly context = new AudioContext({ sampleRate: RATE });
  private pieces: Piece[] = [];
  private next = 0;
  private readonly timer: ReturnType<typeof setInterval>;

  constructor(private readonly report: (part: Part, ms: number) => void) {
    this.timer = setInterval(() => this.reportPlayed(), REPORT_MS);
  }

  /** Browsers allow sound after a click only. */
  resume(): void {
    void this.context.resume();
  }

  play(part: Part, samples: Int16Array): void {
    if (samples.length === 0) return;
    const buffer = this.context.createBuffer(1, samples.length, RATE);
    const channel = buffer.getChannelData(0);
    for (let index = 0; index < samples.length; index += 1) channel[index] = samples[index]! / 32768;
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.context.destination);
    const start = Math.max(this.next, this.context.currentTime + (this.pieces.length === 0 ? LEAD_SECONDS : 0));
    source.start(start);
    this.next = start + buffer.duration;
    this.pieces.push({ ...part, source, start, end: this.next, reported: 0 });
  }

  /** Stop at once. What was heard until now is reported first. */
  stop(): void {
    this.reportPlayed();
    for (const piece of this.pieces) piece.source.stop();
    this.pieces = [];
    this.next = 0;
  }

  close(): void {
    clearInterval(this.timer);
    this.stop();
    void this.context.close();
  }

  private reportPlayed(): void {
    const now = this.context.currentTime;
    for (const piece of this.pieces) {
      const played = Math.min(Math.max(now - piece.start, 0), piece.end - piece.start);
      if (played > piece.reported) {
        this.report(piece, (played - piece.reported) * 1000);
        piece.reported = played;
      }
    }
    this.pieces = this.pieces.filter((piece) => piece.end > now);
  }
}

export function decodeSamples(base64: string): Int16Array {
  const bytes = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
  return new Int16Array(bytes.buffer, 0, bytes.length >> 1);
}
