import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { useSettled } from "../src/state/settled";

const shown: number[] = [];

function Counter({ value }: { value: number }) {
  shown.push(useSettled(value));
  return null;
}

const show = (value: number) => act(() => render(<Counter value={value} />, document.body));
const wait = (milliseconds: number) => act(() => void vi.advanceTimersByTime(milliseconds));

beforeEach(() => {
  vi.useFakeTimers();
  shown.length = 0;
});
afterEach(() => {
  render(null, document.body);
  vi.useRealTimers();
});

test("many changes at once count as one", () => {
  show(0);
  for (let value = 1; value <= 50; value += 1) {
    show(value);
    wait(10);
  }
  expect(new Set(shown)).toEqual(new Set([0]));
  wait(100);
  expect(shown.at(-1)).toBe(50);
});

test("a value that keeps changing is read once a second", () => {
  show(0);
  for (let value = 1; value <= 400; value += 1) {
    show(value);
    wait(10);
  }
  const settled = [...new Set(shown)];
  expect(settled.length).toBeGreaterThan(3);
  expect(settled.length).toBeLessThan(7);
});
