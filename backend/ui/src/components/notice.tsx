/** Full-size messages: nothing there, something failed. Each says what to do next. */
import { type ReactNode, useState } from "react";
import { type ApiError, storeToken, storedToken } from "../api/client";

interface Props {
  title: string;
  children?: ReactNode;
  busy?: boolean;
  alert?: boolean;
}

export function Notice({ title, children, busy, alert }: Props): ReactNode {
  return (
    <section className="notice" role={alert ? "alert" : "status"}>
      {busy && <span className="spinner" aria-hidden="true" />}
      <h2>{title}</h2>
      {children}
    </section>
  );
}

export function Failure({ error, onRetry }: { error: ApiError; onRetry: () => void }): ReactNode {
  if (error.trouble === "unauthorized") return <TokenForm detail={error.message} onDone={onRetry} />;
  return (
    <Notice title={error.title} alert>
      <p>{error.message}</p>
      <button type="button" className="button" onClick={onRetry}>
        Try again
      </button>
    </Notice>
  );
}

function TokenForm({ detail, onDone }: { detail: string; onDone: () => void }): ReactNode {
  const [token, setToken] = useState("");
  const send = (event: React.FormEvent): void => {
    event.preventDefault();
    storeToken(token.trim());
    onDone();
  };
  return (
    <Notice title="This backend asks for a token" alert>
      <p>
        {storedToken() === ""
          ? "Whoever runs it hands them out: they stand in the file that its --tokens names."
          : `It was refused: ${detail}.`}
      </p>
      <form className="token" onSubmit={send}>
        <label>
          Bearer token
          <input
            type="password"
            autoComplete="off"
            value={token}
            onChange={(event) => setToken(event.target.value)}
          />
        </label>
        <button type="submit" className="button primary" disabled={token.trim() === ""}>
          Use it
        </button>
      </form>
      <p className="hint">It stays in this tab and is sent to this backend only.</p>
    </Notice>
  );
}
