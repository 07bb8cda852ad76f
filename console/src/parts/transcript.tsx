/** A conversation as people read it. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { JsonObject } from "../api/types";
import { Text } from "./basic";
import { describeItem } from "./items";
import { Markdown } from "./markdown";

const SHOWN = 200;

interface Props {
  items: (JsonObject | null)[];
  /** What stands beside an item, for example its position and what can be done there. */
  aside?(index: number): ComponentChildren;
  /** Why a model does not see an item; `null` if it does. */
  hidden?(index: number): string | null;
}

export function Transcript({ items, aside, hidden }: Props) {
  const [shown, setShown] = useState(SHOWN);
  const start = Math.max(0, items.length - shown);
  return (
    <>
      {start > 0 && (
        <button type="button" class="link" onClick={() => setShown(shown + 10 * SHOWN)}>
          show earlier items ({start})
        </button>
      )}
      <ol class="transcript" start={start + 1}>
        {items.slice(start).map((item, offset) => {
          const index = start + offset;
          return <Entry key={index} item={item} reason={hidden?.(index) ?? null} aside={aside?.(index)} />;
        })}
      </ol>
    </>
  );
}

function Entry({ item, reason, aside }: { item: JsonObject | null; reason: string | null; aside: ComponentChildren }) {
  const { who, kind, text } = item === null ? { who: "unreadable", kind: "other", text: "" } : describeItem(item);
  return (
    <li class={`entry entry-${kind}${reason === null ? "" : " entry-hidden"}`}>
      <div class="entry-head">
        <span class="who">{who}</span>
        {reason !== null && <span class="tag warn">the model does not see it: {reason}</span>}
        {aside}
      </div>
      {kind === "assistant" ? (
        <Markdown text={text} />
      ) : (
        <div class={kind === "user" ? "entry-text" : "entry-text mono"}>
          <Text text={text} />
        </div>
      )}
    </li>
  );
}
