/** Markup that code has made, in a frame without scripts, forms, pop-ups and network. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import styleAddress from "../style/frame.css?url";

const TALLEST = 480;
const SMALLEST = 24;

/**
 * The frame may not run scripts, so sharing the origin gives it nothing: it is shared for this page to measure the
 * height. The frame inherits the policy of this page, too, and its own policy allows pictures in data: only.
 */
export function HtmlFrame({ html, title }: { html: string; title: string }) {
  const frame = useRef<HTMLIFrameElement>(null);
  const [height, setHeight] = useState(SMALLEST);
  const address = useMemo(() => URL.createObjectURL(new Blob([wrap(html)], { type: "text/html" })), [html]);
  useEffect(() => () => URL.revokeObjectURL(address), [address]);
  const measure = () => {
    const tall = frame.current?.contentDocument?.documentElement.scrollHeight ?? SMALLEST;
    setHeight(Math.min(TALLEST, Math.max(SMALLEST, tall)));
  };
  return (
    <iframe
      ref={frame}
      class="html-frame"
      sandbox="allow-same-origin"
      title={title}
      src={address}
      style={{ height: `${height}px` }}
      onLoad={measure}
    />
  );
}

export function wrap(html: string): string {
  const style = new URL(styleAddress, document.baseURI).href;
  const policy = `default-src 'none'; img-src data:; style-src ${style}`;
  return `<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta http-equiv="content-security-policy" content="${policy}"><link rel="stylesheet" href="${style}"><body>${html}`;
}
