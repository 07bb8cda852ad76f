/** What a browser without a valid credential gets. */

import { useState } from "preact/hooks";
import { type ApiError, key, signedOut, signIn, signOut } from "../api/client";

export function SignInView({ problem }: { problem: ApiError }) {
  const [secret, setSecret] = useState("");
  const retry = () => {
    signOut();
    signedOut.set(null);
  };
  const submit = (event: Event) => {
    event.preventDefault();
    if (secret.trim()) signIn(secret.trim());
  };
  return (
    <main class="sign-in" id="main">
      <h1>standfast</h1>
      <p>
        {key.value === null
          ? "Open the address that standfast serve has printed: it contains a token for this start of the server."
          : `The key was refused: ${problem.detail}.`}
      </p>
      <button type="button" onClick={retry}>
        I have opened it: try again
      </button>
      <form onSubmit={submit}>
        <label for="key">Or enter a key</label>
        <input
          id="key"
          type="password"
          autocomplete="off"
          value={secret}
          onInput={(event) => setSecret(event.currentTarget.value)}
        />
        <button type="submit" class="primary" disabled={!secret.trim()}>
          Sign in
        </button>
        <small>
          An admin creates keys with <code>standfast keys create</code>. This tab forgets the key when it is closed.
        </small>
      </form>
    </main>
  );
}
