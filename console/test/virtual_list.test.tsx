import { render } from "preact";
import { act } from "preact/test-utils";
import { expect, test } from "vitest";
import { splitBlocks } from "../src/parts/markdown";
import { VirtualList } from "../src/parts/virtual_list";

test("of 100,000 rows only those around the visible ones exist, at any place", () => {
  const root = document.createElement("div");
  document.body.append(root);
  const items = Array.from({ length: 100_000 }, (_, index) => index);
  act(() =>
    render(
      <VirtualList items={items} rowHeight={30} label="Numbers" getKey={(one) => one}>
        {(one) => <b>{one}</b>}
      </VirtualList>,
      root,
    ),
  );
  const frame = root.querySelector<HTMLElement>(".virtual")!;
  for (const row of [0, 50_000, 99_990]) {
    act(() => {
      frame.scrollTop = row * 30;
      frame.dispatchEvent(new Event("scroll"));
    });
    const shown = [...root.querySelectorAll("b")].map((one) => Number(one.textContent));
    expect(shown).toContain(row);
    expect(shown.length).toBeLessThan(60);
  }
});

test("Markdown is split into blocks, and an open fence ends with the text", () => {
  expect(splitBlocks("# T\na\nb\n\n- x\n- y\n```\ncode")).toEqual([
    { kind: "heading", text: "T" },
    { kind: "text", text: "a\nb" },
    { kind: "list", isOrdered: false, items: ["x", "y"] },
    { kind: "code", text: "code" },
  ]);
});
