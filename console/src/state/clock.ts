/** The time, for ages and expiries on the page: one timer for all of them. */

import { Store, useStore } from "./store";

const clock = new Store(Date.now() / 1000);
setInterval(() => {
  if (!document.hidden) clock.set(Date.now() / 1000);
}, 1000);

/** The time in seconds since 1970, which changes every second. */
export const useNow = () => useStore(clock);
