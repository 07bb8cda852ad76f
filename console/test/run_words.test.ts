import { describe, expect, it } from "vitest";
import type { RunEvent } from "../src/api/types";
import { addUsage, describeEvent, describeUsage, formatCost } from "../src/parts/run_words";
import { describeLimit, describeSpent, isUsedUp } from "../src/views/budgets";

function answer(data: RunEvent["data"]): RunEvent {
  return { seq: 1, run_id: "r", type: "model.answered", at: 0, live: false, data } as RunEvent;
}

// The fields of a stored response, as the server sends them.
const usage = { requests: 1, input: 60, output: 40, total: 100 };

describe("usage", () => {
  it("adds up requests, tokens and what they cost", () => {
    const total = addUsage([answer({ usage, cost: 0.5 }), answer({ usage }), answer({ usage, cost: 0.25 })]);
    expect(total).toEqual({ requests: 3, input: 180, output: 120, cost: 0.75 });
    expect(describeUsage(total)).toBe("3 model calls, 180 + 120 tokens, $0.75");
  });

  it("shows no cost when no price is known", () => {
    expect(describeUsage(addUsage([answer({ usage })]))).toBe("1 model call, 60 + 40 tokens");
    expect(describeEvent(answer({ usage, items: [] })).text).toBe(" (60 + 40 tokens)");
    expect(describeEvent(answer({ usage, items: [], cost: 0.0123 })).text).toBe(" (60 + 40 tokens, $0.012)");
  });

  it("shows small sums with the digits they need", () => {
    expect([0, 0.000475, 0.5, 1, 12.345].map(formatCost)).toEqual(["$0.00", "$0.00047", "$0.50", "$1.00", "$12.35"]);
  });
});

describe("budgets", () => {
  const budget = { name: "all", created_at: 0, tokens: 1000, cost: 2, per: "day" as const };

  it("have limits, and what was spent of them", () => {
    expect(describeLimit(budget)).toBe(`${(1000).toLocaleString()} tokens or $2.00 a day`);
    expect(describeSpent({ ...budget, spent: { tokens: 10, cost: 1 } })).toBe("10 tokens, $1.00");
    expect(describeSpent({ ...budget, spent: { tokens: 10, unpriced_tokens: 10 } })).toBe(
      "10 tokens, $0.00, 10 tokens without a known price",
    );
  });

  it("are used up by tokens or by cost", () => {
    expect(isUsedUp({ ...budget, spent: { tokens: 999, cost: 1.99 } })).toBe(false);
    expect(isUsedUp({ ...budget, spent: { tokens: 1000 } })).toBe(true);
    expect(isUsedUp({ ...budget, spent: { cost: 2 } })).toBe(true);
  });
});
