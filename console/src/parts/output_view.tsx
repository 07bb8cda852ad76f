/** The outputs of a cell: text, pictures, tables, errors, and questions. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { JsonObject } from "../api/types";
import { formatBytes, formatCount, formatJson, showUnseen } from "../text";
import { Action, Problem, Text } from "./basic";
import { HtmlFrame } from "./html_frame";
import { Markdown } from "./markdown";
import type { Output } from "./outputs";

export type Answer = (inputId: string, data: string, eof: boolean) => Promise<unknown>;

export function OutputView({ output, answer }: { output: Output; answer: Answer | null }) {
  switch (output.kind) {
    case "text":
      return (
        <div class={`output output-${output.stream}`}>
          {output.lost > 0 && <p class="quiet">{formatBytes(output.lost)} before this are not shown.</p>}
          <pre tabIndex={0} role="region" aria-label={output.stream}>
            <Text text={output.text} longest={20_000} />
          </pre>
        </div>
      );
    case "display":
      return <Display data={output.data} />;
    case "value":
      return (
        <div class="output-value">
          <Display data={output.data} />
        </div>
      );
    case "error":
      return <CellError {...output} />;
    case "input":
      return answer === null ? (
        <pre class="output">{showUnseen(output.prompt)}</pre>
      ) : (
        <Ask {...output} {...{ answer }} />
      );
    default:
      return <p class="quiet">{formatCount(output.count)} messages before this are not kept any more.</p>;
  }
}

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/** The richest form that can be shown safely. A picture cannot run scripts, also not an SVG one. */
function Display({ data }: { data: JsonObject }) {
  const plain = typeof data["text/plain"] === "string" ? data["text/plain"] : "";
  const alternative = plain.slice(0, 200) || "a picture that code has made";
  const picture = PICTURES.find((one) => typeof data[one] === "string");
  if (picture !== undefined) {
    return (
      <img
        class="output-picture"
        alt={alternative}
        src={`data:${picture};base64,${String(data[picture]).replace(/\s/g, "")}`}
      />
    );
  }
  const svg = data["image/svg+xml"];
  if (typeof svg === "string") {
    return (
      <img
        class="output-picture"
        alt={alternative}
        src={`data:image/svg+xml,${encodeURIComponent(svg.toWellFormed())}`}
      />
    );
  }
  const html = data["text/html"];
  if (typeof html === "string") return <HtmlFrame html={html} title="Output of the cell" />;
  const markdown = data["text/markdown"];
  if (typeof markdown === "string") return <Markdown text={markdown} />;
  return (
    <pre class="output" tabIndex={0} role="region" aria-label="Value">
      <Text text={plain || formatJson(data["application/json"] ?? data)} />
    </pre>
  );
}

function CellError({ title, text, isInterrupted, isLost }: Output & { kind: "error" }) {
  return (
    <div class="output-error">
      <p>
        {isInterrupted ? "Interrupted." : <Text text={title} longest={1000} />}
        {isLost && " The worker has ended: the next cell finds the variables as they were saved last."}
      </p>
      {text !== "" && !isInterrupted && (
        <details>
          <summary>Traceback</summary>
          <pre>
            <Text text={text} />
          </pre>
        </details>
      )}
    </div>
  );
}

/** An input box where the code asks. */
function Ask({ id, prompt, isSecret, answer }: Output & { kind: "input" } & { answer: Answer }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => box.current?.focus(), [id]);
  const submit = (event: Event) => {
    event.preventDefault();
    answer(id, text, false).catch(setProblem);
  };
  return (
    <form class="ask" onSubmit={submit}>
      <label for={`ask-${id}`}>{showUnseen(prompt) || "The code asks for a line"}</label>
      <input
        ref={box}
        id={`ask-${id}`}
        type={isSecret ? "password" : "text"}
        autocomplete="off"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <button type="submit" class="primary">
        Answer
      </button>
      <Action act={() => answer(id, "", true)} onProblem={setProblem} title="input() raises EOFError">
        End of input
      </Action>
      {problem !== null && <Problem problem={problem} />}
    </form>
  );
}
