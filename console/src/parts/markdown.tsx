/** The Markdown that models write, as elements: no text ever becomes HTML. What is not known stays as it is. */

import type { ComponentChildren, VNode } from "preact";
import { showUnseen } from "../text";

const LONGEST = 50_000;

export function Markdown({ text }: { text: string }) {
  const shown = showUnseen(text.slice(0, LONGEST));
  return (
    <div class="markdown">
      {splitBlocks(shown).map((block, index) => (
        <Block key={index} block={block} />
      ))}
      {text.length > LONGEST && <p class="quiet">… {text.length - LONGEST} more characters</p>}
    </div>
  );
}

type MarkdownBlock =
  | { kind: "code"; text: string }
  | { kind: "heading"; text: string }
  | { kind: "list"; isOrdered: boolean; items: string[] }
  | { kind: "text"; text: string };

const LIST_ITEM = /^ {0,3}(?:[-*+]|(\d{1,9})[.)]) +(.*)$/;

export function splitBlocks(text: string): MarkdownBlock[] {
  const blocks: MarkdownBlock[] = [];
  const lines = text.split("\n");
  let at = 0;
  while (at < lines.length) {
    const line = lines[at] ?? "";
    const item = LIST_ITEM.exec(line);
    if (line.trim() === "") at += 1;
    else if (line.startsWith("```")) {
      const end = lines.findIndex((one, index) => index > at && one.startsWith("```"));
      const stop = end < 0 ? lines.length : end;
      blocks.push({ kind: "code", text: lines.slice(at + 1, stop).join("\n") });
      at = stop + 1;
    } else if (/^#{1,6} /.test(line)) {
      blocks.push({ kind: "heading", text: line.replace(/^#+ +/, "") });
      at += 1;
    } else if (item !== null) {
      const items: string[] = [];
      for (let found = LIST_ITEM.exec(lines[at] ?? ""); found !== null; found = LIST_ITEM.exec(lines[at] ?? "")) {
        items.push(found[2] ?? "");
        at += 1;
      }
      blocks.push({ kind: "list", isOrdered: item[1] !== undefined, items });
    } else {
      const start = at;
      do at += 1;
      while (at < lines.length && !/^(```|#{1,6} |\s*$)/.test(lines[at] ?? "") && !LIST_ITEM.test(lines[at] ?? ""));
      blocks.push({ kind: "text", text: lines.slice(start, at).join("\n") });
    }
  }
  return blocks;
}

function Block({ block }: { block: MarkdownBlock }): VNode {
  switch (block.kind) {
    case "code":
      return (
        <pre class="code" tabIndex={0} role="region" aria-label="code">
          {block.text}
        </pre>
      );
    case "heading":
      return (
        <p>
          <strong>{formatSpans(block.text)}</strong>
        </p>
      );
    case "list": {
      const items = block.items.map((one, index) => <li key={index}>{formatSpans(one)}</li>);
      return block.isOrdered ? <ol>{items}</ol> : <ul>{items}</ul>;
    }
    default:
      return <p>{formatSpans(block.text)}</p>;
  }
}

const SPAN = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*|\[([^\]\n]{1,500})\]\((https?:\/\/[^\s()]{1,2000})\)/g;

function formatSpans(text: string): ComponentChildren[] {
  const found: ComponentChildren[] = [];
  let end = 0;
  for (const match of text.matchAll(SPAN)) {
    const [whole, code, strong, emphasis, label, address] = match;
    found.push(text.slice(end, match.index));
    if (code !== undefined) found.push(<code>{code}</code>);
    else if (strong !== undefined) found.push(<strong>{strong}</strong>);
    else if (emphasis !== undefined) found.push(<em>{emphasis}</em>);
    else if (address !== undefined) {
      found.push(
        <a href={address} target="_blank" rel="noopener noreferrer" title={address}>
          {label}
        </a>,
      );
    }
    end = match.index + whole.length;
  }
  found.push(text.slice(end));
  return found;
}
