// Answers that may be another one in a moment; those from 429 on also where no
// problem document says so, but a proxy on the way. 400 and 422 never are.
const passing = [408, 409, 425, 429, 502, 503, 504];

// These ask for another job to end first, which takes as long as it takes.
const patient = ["business-key-conflict", "job-not-finished"];

// Calls that need no key, for they end in one state however often they come. What
// the gateway hands on to a route of yours may end with the same words.
const settled = /^\/jobs\/[^/]+\/cancel$|^\/executors\/[^/]+\/(pause|resume)$/;

async function repeatable(request: Request, base: string): Promise<boolean> {
  const { method, headers, url } = request;
  if (method === "GET" || method === "HEAD" || headers.has("Idempotency-Key")) return true;
  const above = new URL(base, url).pathname.replace(/\/*$/, "/");
  const { pathname } = new URL(url);
  if (method !== "POST" || !pathname.startsWith(above)) return false;
  const path = pathname.slice(above.length - 1);
  return path === "/jobs/batch" ? haveKeys(await request.clone().json().catch(() => null)) : settled.test(path);
}

// A batch needs none where each of its items has one of its own.
const haveKeys = (items: unknown) => Array.isArray(items) && items.every((item) => typeof item?.key === "string");

/**
 * Returns a fetch that sends a request again, with the same key and the same body,
 * where that cannot do anything twice: when no whole answer came, and when the
 * answer says that it passes. It waits as long as Retry-After says, gives up after
 * so many tries, and hands on an answer that would take longer than `longest`. A
 * try ends after `timeout`, which is longer than the 60 s that a gateway may wait
 * for a job. All times are in milliseconds; `base` is the gateway's address, where
 * that has a path.
 */
export function safeRetry({ base = "/", tries = 7, longest = 30_000, timeout = 75_000 } = {}) {
  return async (request: Request): Promise<Response> => {
    const again = await repeatable(request, base);
    for (let n = 1; ; n++) {
      const last = n >= tries || !again;
      let wait = 100 * 2 ** n * (0.5 + Math.random() / 2); // not all clients at once
      try {
        const signal = AbortSignal.any([request.signal, AbortSignal.timeout(timeout)]);
        const answer = await whole(await fetch(request.clone(), { signal }));
        if (last || !(await passes(answer))) return answer;
        wait += retryAfter(answer);
        if (wait > longest) return answer;
      } catch (error) {
        if (last || request.signal.aborted) throw error;
      }
      await pause(wait, request.signal);
    }
  };
}

// An answer that breaks off is none, so the body is read before it is handed on.
const whole = async (answer: Response) => new Response(answer.body && (await answer.arrayBuffer()), answer);

async function passes(answer: Response): Promise<boolean> {
  const problem = await answer.clone().json().catch(() => null);
  return passing.includes(answer.status) && (problem?.retryable ?? answer.status >= 429) && !patient.includes(problem?.code);
}

/** How long the answer says to wait, in milliseconds. */
export const retryAfter = ({ headers }: Response) => 1000 * Number(headers.get("Retry-After")) || 0;

/** Waits, or throws the signal's reason once it is aborted. */
export async function pause(ms: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const stop = () => (clearTimeout(timer), reject(signal?.reason));
    const timer = setTimeout(() => (signal?.removeEventListener("abort", stop), resolve()), ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
