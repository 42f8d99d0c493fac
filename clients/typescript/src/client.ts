// A client of `memalpha serve`: all routes with the types of its OpenAPI description, and errors that are thrown.
import createFetchClient, { type Client, type Middleware } from "openapi-fetch";
import type { components, paths } from "./schema.js";

export type MemoryEntry = components["schemas"]["MemoryEntry"];
export type MemoryClient = Client<paths>;

export interface MemoryClientOptions {
  /** Address of the server, such as http://127.0.0.1:8765. */
  address: string;
  /** API key or token. */
  key?: string;
  /** Namespace of all requests; by default the key's only one. */
  namespace?: string;
  /** How often a request is sent again that was refused before any work (429). */
  retries?: number;
}

/** A failed request: the server's code and message, the HTTP status, and the seconds after which to ask again. */
export class MemoryError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly status: number,
    readonly retryAfter?: number,
  ) {
    super(message);
    this.name = "MemoryError";
  }
}

const MAX_WAIT_SECONDS = 60;

/** Return a client whose calls throw `MemoryError` for every answer that is no success. */
export function createMemoryClient(options: MemoryClientOptions): MemoryClient {
  const headers: Record<string, string> = {};
  if (options.key !== undefined) headers["Authorization"] = `Bearer ${options.key}`;
  if (options.namespace !== undefined) headers["Memalpha-Namespace"] = encodeURIComponent(options.namespace);
  const client = createFetchClient<paths>({
    baseUrl: options.address,
    headers,
    fetch: (request) => fetchAgain(request, options.retries ?? 3),
  });
  client.use(throwErrors);
  return client;
}

async function fetchAgain(request: Request, retries: number): Promise<Response> {
  for (let attempt = 0; ; attempt += 1) {
    // Of a redirected POST, fetch would make a GET without a body: the entry would be lost.
    const response = await fetch(request.clone(), { redirect: "manual" });
    const seconds = retryAfter(response) ?? 0.5 * 2 ** attempt;
    if (response.status !== 429 || attempt >= retries || seconds > MAX_WAIT_SECONDS) return response;
    await response.body?.cancel();
    await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  }
}

const throwErrors: Middleware = {
  async onResponse({ response }) {
    if (response.ok) return undefined;
    let code = "";
    let message = `the server answered ${response.status}`;
    try {
      const fields = (await response.clone().json()) as { code?: unknown; message?: unknown };
      if (typeof fields.message === "string") [code, message] = [String(fields.code ?? ""), fields.message];
    } catch {
      // The answer of a proxy, without a body of memalpha's: the status says all that is known.
    }
    const location = response.headers.get("Location");
    if (location !== null) message += `: a redirect to ${location}, which is the address to give`;
    throw new MemoryError(code, message, response.status, retryAfter(response));
  },
};

function retryAfter(response: Response): number | undefined {
  const text = response.headers.get("Retry-After");
  return text !== null && /^\d+$/.test(text) ? Number(text) : undefined;
}
