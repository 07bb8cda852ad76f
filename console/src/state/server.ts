/** The server, and who this page is for it. */

import type { ServerInfo } from "../api/types";
import { Store, useStore } from "./store";

export const server = new Store<ServerInfo | null>(null);
export const useServer = () => useStore(server);
