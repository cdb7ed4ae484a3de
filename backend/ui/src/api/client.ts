/**
 * Requests to the backend. Every failure becomes an ApiError whose text says what happened and what to do.
 * A bearer token, if the server wants one, lives in sessionStorage: gone with the tab.
 */

export type Trouble = "unreachable" | "unauthorized" | "refused" | "busy" | "slow" | "broken";

export class ApiError extends Error {
  override name = "ApiError";
  constructor(
    readonly trouble: Trouble,
    readonly title: string,
    detail: string,
    /** Seconds after which to ask again, if the server said so. */
    readonly retryAfter: number | null = null,
  ) {
    super(detail);
  }
}

const TOKEN_KEY = "flameherd-token";

export function storedToken(): string {
  return sessionStorage.getItem(TOKEN_KEY) ?? "";
}

export function storeToken(token: string): void {
  if (token) sessionStorage.setItem(TOKEN_KEY, token);
  else sessionStorage.removeItem(TOKEN_KEY);
}

function headers(): HeadersInit {
  const token = storedToken();
  return token ? { Authorization: `Bearer ${token}` } : {};
}

const troubleOf = (status: number): Trouble => {
  if (status === 401) return "unauthorized";
  if (status === 429 || status === 503) return "busy";
  if (status === 504) return "slow";
  return status < 500 ? "refused" : "broken";
};

async function problem(response: Response): Promise<ApiError> {
  const retry = Number(response.headers.get("Retry-After") ?? "");
  let title = `The server answered ${response.status}`;
  let detail = response.statusText || "It gave no reason; its log may.";
  if ((response.headers.get("Content-Type") ?? "").includes("problem+json")) {
    const body = (await response.json()) as { title?: string; detail?: string };
    title = body.title || title;
    detail = body.detail || detail;
  }
  return new ApiError(
    troubleOf(response.status),
    title,
    detail,
    Number.isFinite(retry) && retry > 0 ? retry : null,
  );
}

async function request(path: string, query: URLSearchParams, signal: AbortSignal): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url(path, query), { headers: headers(), signal, credentials: "same-origin" });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError(
      "unreachable",
      "The backend does not answer",
      "Is it still running? Start it again with `make up` or `flameherd up`; this page goes on by itself.",
      5,
    );
  }
  if (!response.ok) throw await problem(response);
  return response;
}

export function url(path: string, query: URLSearchParams): string {
  const text = query.toString();
  return `/api/v1/${path}${text ? `?${text}` : ""}`;
}

export async function getJson<T>(path: string, query: URLSearchParams, signal: AbortSignal): Promise<T> {
  const response = await request(path, query, signal);
  try {
    return (await response.json()) as T;
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError("broken", "The server's answer cannot be read", `${path}: ${String(error)}`);
  }
}

/** A file of the server and the name that it gave it: with a token a plain link would be refused. */
export async function getFile(
  path: string,
  query: URLSearchParams,
): Promise<{ name: string; content: Blob }> {
  const response = await request(path, query, new AbortController().signal);
  const named = /filename="([^"/\\]+)"/.exec(response.headers.get("Content-Disposition") ?? "");
  return { name: named?.[1] ?? "profile", content: await response.blob() };
}
