/** A value that changes often, for work that is not worth doing for each change. */

import { useEffect, useRef, useState } from "preact/hooks";

const QUIET = 100;
const LONGEST = 1000;

/** Return the value once it has been the same for a moment, and at the latest a second after it changed. */
export function useSettled<T>(value: T): T {
  const [settled, setSettled] = useState(value);
  const since = useRef<number | null>(null);
  useEffect(() => {
    if (value === settled) {
      since.current = null;
      return;
    }
    since.current ??= Date.now();
    const settle = () => {
      since.current = null;
      setSettled(value);
    };
    const timer = setTimeout(settle, Math.min(QUIET, since.current + LONGEST - Date.now()));
    return () => clearTimeout(timer);
  }, [value, settled]);
  return settled;
}
