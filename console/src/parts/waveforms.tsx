/** Two waveforms and what happened, on one line of time. */

import { useEffect, useRef } from "preact/hooks";
import { BIN_MS, type Levels } from "../audio/levels";
import type { Mark } from "../state/call_log";
import { useStore } from "../state/store";
import { theme } from "../state/theme";
import { showUnseen } from "../text";

interface Props {
  caller: Levels;
  agent: Levels;
  marks: readonly Mark[];
  /** The time shown at the right edge, in milliseconds; it is asked for again with each picture. */
  getEnd(): number;
  spanMs: number;
  isLive: boolean;
}

const HEIGHT = 120;
const GAP = 4;
/** Quiet voices are seen, too. */
const EMPHASIS = 0.6;

export function Waveforms({ caller, agent, marks, getEnd, spanMs, isLive }: Props) {
  useStore(theme); // other colours are another picture
  const canvas = useRef<HTMLCanvasElement>(null);
  const marksLayer = useRef<HTMLDivElement>(null);
  useEffect(() => {
    let frame = 0;
    const draw = () => {
      const end = Math.max(getEnd(), spanMs);
      if (canvas.current !== null) paint(canvas.current, caller, agent, end - spanMs, end);
      for (const element of marksLayer.current?.children ?? []) place(element as HTMLElement, end - spanMs, spanMs);
      if (isLive) frame = requestAnimationFrame(draw);
    };
    draw();
    const drawAgain = () => !isLive && draw();
    const observer = new ResizeObserver(drawAgain);
    if (canvas.current) observer.observe(canvas.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", drawAgain);
    return () => {
      cancelAnimationFrame(frame);
      scheme.removeEventListener("change", drawAgain);
      observer.disconnect();
    };
  });
  return (
    <div class="waveforms">
      <span class="waveform-name">caller</span>
      <span class="waveform-name">agent</span>
      <canvas ref={canvas} height={HEIGHT} role="img" aria-label="How loud the caller and the agent were" />
      <div class="waveform-marks" ref={marksLayer} aria-hidden="true">
        {marks.map((mark, index) => (
          <i key={index} class={`mark mark-${mark.kind}`} data-at={mark.at * 1000} title={showUnseen(mark.title)} />
        ))}
      </div>
    </div>
  );
}

function place(element: HTMLElement, begin: number, span: number): void {
  const share = (Number(element.dataset.at) - begin) / span;
  element.hidden = share < 0 || share > 1;
  element.style.left = `${share * 100}%`;
}

function paint(canvas: HTMLCanvasElement, caller: Levels, agent: Levels, begin: number, end: number): void {
  const scale = window.devicePixelRatio;
  const width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = HEIGHT * scale;
  }
  const context = canvas.getContext("2d");
  if (context === null) return;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, HEIGHT);
  const style = getComputedStyle(canvas);
  const lane = (HEIGHT - GAP) / 2;
  for (const [levels, top, colour] of [
    [caller, 0, "--accent"],
    [agent, lane + GAP, "--good"],
  ] as const) {
    const middle = top + lane / 2;
    context.fillStyle = style.getPropertyValue("--line");
    context.fillRect(0, middle - 0.5, width, 1);
    context.fillStyle = style.getPropertyValue(colour);
    const bar = Math.max(1, (BIN_MS / (end - begin)) * width - 1);
    for (let bin = Math.max(0, Math.floor(begin / BIN_MS)); bin * BIN_MS < end; bin += 1) {
      const level = levels.values[bin];
      if (level === undefined) continue;
      const tall = Math.max(1, level ** EMPHASIS * lane);
      context.fillRect(((bin * BIN_MS - begin) / (end - begin)) * width, middle - tall / 2, bar, tall);
    }
  }
}
