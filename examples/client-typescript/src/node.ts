// Submits an invoice, and whatever else one does with a job. Running it again does
// nothing twice: npm start, or npm start -- ORDER for another order.
import { operationKey, quoted } from "./keys.ts";
import { connect, follow, granted, inWords, Refused, type Gateway, type Job, type Submission } from "./sekali.ts";

type Invoice = { order_id: string; total: number };

// A result is any JSON: `unknown` until somebody has looked.
function isInvoice(value: unknown): value is Invoice {
  const invoice = value as Partial<Invoice> | null;
  return typeof invoice?.order_id === "string" && typeof invoice.total === "number";
}

const say = (step: string, text: string) => console.log(`${step.padEnd(8)}${text}`);

async function submit(gateway: Gateway, step: string, key: string, body: Submission): Promise<Response> {
  const answer = await gateway.POST("/jobs", { params: { header: { "Idempotency-Key": quoted(key) } }, body });
  const { key: accepted } = granted(answer);
  const { headers, status } = answer.response;
  say(step, `${status} ${accepted}, Idempotent-Replayed: ${headers.get("Idempotent-Replayed")}, Job-Status: ${headers.get("Job-Status")}`);
  return answer.response;
}

// The key says that this is the first request again, and the body that it is not.
async function mistake(gateway: Gateway, key: string, body: Submission): Promise<void> {
  try {
    await submit(gateway, "mistake", key, body);
    throw new Error("the gateway took another request under the same key");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    say("mistake", error.message);
  }
}

async function wait(gateway: Gateway, key: string, signal: AbortSignal): Promise<Job> {
  let last: Job | undefined;
  for await (const job of follow(gateway, key, signal)) {
    last = job;
    say("wait", `${job.status}: the job ${inWords(job.status)}`);
  }
  if (last?.status !== "succeeded") throw new Error(`the job is ${last?.status}: ${last?.error?.detail}`);
  return last;
}

async function result(gateway: Gateway, key: string): Promise<void> {
  const value = granted(await gateway.GET("/jobs/{key}/result", { params: { path: { key } } }));
  if (!isInvoice(value)) throw new Error(`this is no invoice: ${JSON.stringify(value)}`);
  say("result", `order ${value.order_id}, total ${value.total}`);
}

async function list(gateway: Gateway, prefix: string): Promise<void> {
  let cursor: string | null = null;
  do {
    const query: { key_prefix: string; cursor?: string } = { key_prefix: prefix, ...(cursor ? { cursor } : {}) };
    const page = granted(await gateway.GET("/jobs", { params: { query } }));
    for (const job of page.jobs) say("list", `${job.key} ${job.status}`);
    cursor = page.next_cursor;
  } while (cursor);
}

async function cancel(gateway: Gateway, key: string): Promise<void> {
  const job = granted(await gateway.POST("/jobs/{key}/cancel", { params: { path: { key } } }));
  say("cancel", `${job.key} ${job.status}`);
}

async function main(order = "ts-1001"): Promise<void> {
  const gateway = connect(process.env.SEKALI_URL ?? "http://127.0.0.1:8080", process.env.SEKALI_TOKEN);
  const key = operationKey("invoice", order);
  const body = { type: "invoice_generate", payload: { order_id: order, total: 4200 } };

  await submit(gateway, "submit", key, body);
  await submit(gateway, "repeat", key, body);
  await mistake(gateway, key, { ...body, payload: { order_id: order, total: 1 } });
  await wait(gateway, key, AbortSignal.timeout(60_000));
  await result(gateway, key);
  await list(gateway, operationKey("invoice", order));

  const later = operationKey("reminder", order);
  await submit(gateway, "submit", later, { ...body, delay_seconds: 3600 });
  await cancel(gateway, later);
}

main(process.argv[2]).catch((error: unknown) => {
  const cause = error instanceof Error && error.cause instanceof Error ? `: ${error.cause.message}` : "";
  console.error(`${error instanceof Error ? error.message : error}${cause}`);
  process.exitCode = 1;
});
