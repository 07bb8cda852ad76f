/** What a decider needs to know about a call: the conversation before it, and its identity. */

import { segment } from "../api/client";
import { useQuery } from "../api/query";
import type { Approval, RunStepView } from "../api/types";
import { Facts, Problem, Text } from "../parts/basic";
import { describeItem } from "../parts/items";
import { formatTime } from "../text";

const SHOWN = 8;

export function CallContext({ approval }: { approval: Approval }) {
  const { data, problem } = useQuery<RunStepView>(`/runs/${segment(approval.run_id)}/step`);
  const items = (data?.run.items ?? []).map((one) => one.item);
  const end = items.findIndex((one) => one.call_id === approval.call_id);
  const before = end < 0 ? items : items.slice(0, end);
  return (
    <section class="context">
      <h3>Before this call</h3>
      {problem !== null && <Problem problem={problem} />}
      <ol class="excerpt">
        {before.slice(-SHOWN).map((item, index) => {
          const { who, text } = describeItem(item);
          return (
            <li key={index}>
              <span class="who">{who}</span>
              <span class="said">
                <Text text={text} longest={600} />
              </span>
            </li>
          );
        })}
      </ol>
      <h3>Evidence</h3>
      <Facts
        facts={[
          ["requested", formatTime(approval.requested_at)],
          ["call", approval.call_id],
          ["idempotency key", approval.idempotency_key ?? "unknown"],
          ["SHA-256 of the arguments", approval.digest],
          ...(approval.expires_at ? ([["expires", formatTime(approval.expires_at)]] as [string, string][]) : []),
        ]}
      />
    </section>
  );
}
