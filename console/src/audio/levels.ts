/** How loud both sides of a call were, piece by piece: what its waveforms show. */

import { RATE } from "./player";

/** Milliseconds of one value. */
export const BIN_MS = 50;
const BIN = (RATE * BIN_MS) / 1000;

export class Levels {
  /** The largest sample of each piece of time, from 0 to 1. */
  readonly values: number[] = [];
  private cursor = 0;

  /** Add samples that begin at this time in milliseconds, or after those before them if that is later. */
  add(samples: Int16Array, atMs: number): void {
    let sample = Math.max(Math.round((atMs * RATE) / 1000), this.cursor);
    for (const value of samples) {
      const bin = Math.floor(sample / BIN);
      const level = Math.abs(value) / 32768;
      if (!((this.values[bin] ?? 0) >= level)) this.values[bin] = level;
      sample += 1;
    }
    this.cursor = sample;
  }

  /** Forget what was to be played after this time: it was not heard. */
  cut(atMs: number): void {
    this.values.length = Math.min(this.values.length, Math.ceil(atMs / BIN_MS));
    this.cursor = Math.min(this.cursor, Math.round((atMs * RATE) / 1000));
  }
}
