/** Files from the server to the disk of the reader. */

import { type Query, send } from "../api/client";

/** Fetch a path with the credential of this page, and save what it contains. */
export async function download(path: string, name: string, query: Query = {}): Promise<void> {
  saveBlob(await (await send("GET", path, { query })).blob(), name);
}

export function saveBlob(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\w.-]/g, "_");
  link.click();
  URL.revokeObjectURL(link.href);
}
