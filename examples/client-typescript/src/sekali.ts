import createClient, { type Client } from "openapi-fetch";
import { pause, retryAfter, safeRetry } from "./safe-retry.ts";
import type { components, paths } from "./schema.d.ts";

export type Gateway = Client<paths>;
export type Job = components["schemas"]["Job"];
export type Problem = components["schemas"]["Problem"];
export type Submission = components["schemas"]["Submission"];

/** A typed client of the gateway: one method for each verb, checked by tsc. */
export function connect(baseUrl: string, token?: string): Gateway {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  return createClient<paths>({ baseUrl, headers, fetch: safeRetry({ base: baseUrl }) });
}

/** The gateway's no. `problem` is missing where somebody else answered. */
export class Refused extends Error {
  readonly status: number;
  readonly problem: Problem | undefined;

  constructor(status: number, body: unknown) {
    const problem = isProblem(body) ? body : undefined;
    super(problem ? `${status} ${problem.code}: ${problem.detail}` : `${status}, and no problem document`);
    this.name = "Refused";
    this.status = status;
    this.problem = problem;
  }
}

/** The data of an answer; throws Refused where there is none. */
export function granted<T>(answer: { data?: T; error?: unknown; response: Response }): T {
  if (answer.data === undefined) throw new Refused(answer.response.status, answer.error);
  return answer.data;
}

function isProblem(body: unknown): body is Problem {
  return typeof body === "object" && body !== null && "code" in body && "detail" in body;
}

// `status` is an open set: a later gateway may send a word that is not known here.
// A job of such a status has ended when it says since when, and a word that has no
// text is shown as it is.
export const hasFinished = ({ status, finished_at }: Job): boolean =>
  finished_at !== null || ["succeeded", "failed", "cancelled"].includes(status);

const texts: Record<string, string> = {
  scheduled: "waits for its time",
  pending: "waits for an executor",
  processing: "is being done",
  retrying: "waits for another attempt",
  succeeded: "is done",
  failed: "has failed",
  cancelled: "was cancelled",
};

export const inWords = (status: string): string => texts[status] ?? status;

/**
 * The job, now and whenever it has changed, until it has finished. The gateway
 * holds each answer until there is something new (a long poll), so this neither
 * misses a change for long nor asks all the time.
 */
export async function* follow(gateway: Gateway, key: string, signal?: AbortSignal): AsyncGenerator<Job> {
  let known: string | null = null;
  for (;;) {
    const answer = await poll(gateway, key, known, signal);
    if (answer.response.status !== 304) {
      const job = granted(answer);
      yield job;
      if (hasFinished(job)) return;
    }
    // A gateway that has too many clients waiting answers at once.
    if (known && !answer.response.headers.has("Preference-Applied")) await pause(retryAfter(answer.response) || 1000, signal);
    known = answer.response.headers.get("ETag");
  }
}

function poll(gateway: Gateway, key: string, known: string | null, signal?: AbortSignal) {
  const header = known ? { "If-None-Match": known, Prefer: "wait=20" } : {};
  return gateway.GET("/jobs/{key}", { params: { path: { key }, header }, signal: signal ?? null });
}
