-- +goose Up

-- Every key carries the slot, computed by the gateway: the routing column of a
-- distributed Postgres (docs/adr/0002). Payloads, results and responses are
-- bytes and come back as they came.

-- What a program that opens this database must agree with; checked at start.
create table meta (
  name  text primary key,
  value text not null
);
insert into meta (name, value) values ('slots', '256'), ('slot_hash', 'sha256-32:v1');

-- One row per (tenant, key): the claim on the key, and the stored response.
-- It lives in the slot of its key and points at the job, which may live in
-- another one. The expiry of a job's key is the job's; expires_at here is for
-- records without a job and for tombstones.
create table idempotency_keys (
  slot             smallint    not null,
  tenant           text        not null,
  key              text        not null,
  fingerprint      bytea       not null,               -- version, 16 bytes target, 32 bytes body
  state            text        not null check (state in ('in_progress', 'completed', 'interrupted', 'retired')),
  job_slot         smallint,
  job_id           uuid,
  alias            boolean     not null default false, -- bound to another key's job by a business key
  response_status  smallint,                           -- the response: null for an alias or a tombstone
  response_headers bytea,
  response_body    bytea,
  owner            uuid,                               -- the claim, only while in progress
  claimed_until    timestamptz,
  attempt          int         not null default 1,
  final_state      text,
  created_at       timestamptz not null,
  expires_at       timestamptz,
  primary key (slot, tenant, key),
  check ((state = 'in_progress') = (claimed_until is not null))
);
create index idempotency_keys_expiry on idempotency_keys (expires_at) where expires_at is not null;
create index idempotency_keys_alias  on idempotency_keys (job_id) where alias;

-- Unfinished jobs only, so that claiming, heartbeats and uniqueness cost the
-- same whatever the history. The fill factor leaves room for heartbeats to
-- update in place (HOT), for which locked_until must stay out of every index.
create table jobs (
  slot                smallint    not null,
  id                  uuid        not null,
  tenant              text        not null,
  key                 text        not null,
  key_slot            smallint    not null,
  type                text        not null,
  state               text        not null check (state in ('scheduled', 'pending', 'processing', 'retrying')),
  blocked             boolean     not null default false, -- waits for the holder of its business key
  payload             bytea       not null,
  business_key        text,
  operation_key       text,
  callback_url        text,
  priority            smallint    not null default 0,
  run_at              timestamptz not null,
  claim_at            timestamptz not null,               -- run_at shifted by the priority's head start
  deadline            timestamptz,
  timeout_ms          bigint      not null,
  max_attempts        int         not null,
  attempt             int         not null default 0,
  generation          int         not null default 1,
  version             bigint      not null default 1,
  token               bigint      not null default 0,     -- fencing token: rises with each claim, never falls
  worker_id           text,
  locked_until        timestamptz,
  cancel_requested_at timestamptz,
  last_error          bytea,
  created_at          timestamptz not null,
  started_at          timestamptz,                        -- first claim
  claimed_at          timestamptz,                        -- last claim
  primary key (slot, id),
  check ((state = 'processing') = (locked_until is not null))
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
create unique index jobs_business on jobs (slot, tenant, type, business_key) where business_key is not null and not blocked;
create index jobs_ready   on jobs (type, claim_at, id) where state = 'pending' and not blocked;
create index jobs_due     on jobs (run_at) where state in ('scheduled', 'retrying');
create index jobs_running on jobs (slot, id) where state = 'processing';
create index jobs_blocked on jobs (slot, id) where blocked;
create index jobs_list    on jobs (tenant, id);

-- Jobs that have ended. UUIDv7 ids are ranges of time, so retention can drop
-- whole partitions; until some are made, the default one takes all.
create table finished_jobs (
  slot          smallint    not null,
  id            uuid        not null,
  tenant        text        not null,
  key           text        not null,
  key_slot      smallint    not null,
  type          text        not null,
  state         text        not null check (state in ('succeeded', 'failed', 'cancelled')),
  payload       bytea       not null,
  business_key  text,
  operation_key text,
  callback_url  text,
  priority      smallint    not null,
  run_at        timestamptz not null,
  deadline      timestamptz,
  timeout_ms    bigint      not null,
  max_attempts  int         not null,
  attempt       int         not null,
  generation    int         not null,
  version       bigint      not null,
  token         bigint      not null,
  worker_id     text,
  last_error    bytea,
  created_at    timestamptz not null,
  started_at    timestamptz,
  claimed_at    timestamptz,
  outcome       text,
  duplicate_of  text,
  result        bytea,
  result_type   text,
  result_hash   bytea,
  finished_at   timestamptz not null,
  expires_at    timestamptz not null,
  primary key (slot, id)
) partition by range (id);
create table finished_jobs_rest partition of finished_jobs default;
create index finished_jobs_list   on finished_jobs (tenant, id);
create index finished_jobs_expiry on finished_jobs (expires_at);

-- One row per claim that has ended, written with the end, keyed by its token.
create table job_attempts (
  slot        smallint    not null,
  job_id      uuid        not null,
  token       bigint      not null,
  number      int         not null,
  outcome     text        not null check (outcome in ('succeeded', 'failed', 'lost', 'released', 'cancelled')),
  worker_id   text        not null,
  error       bytea,
  started_at  timestamptz not null,
  finished_at timestamptz not null,
  primary key (slot, job_id, token)
);

-- Near misses only; the ordinary life is read from the job and its attempts.
create table job_events (
  slot       smallint    not null,
  job_id     uuid        not null,
  id         uuid        not null,
  event      text        not null,
  attempt    int,
  data       bytea,
  created_at timestamptz not null default now(),
  primary key (slot, job_id, id)
);

-- Business operations that are done, or being done by one job.
create table processed_operations (
  slot           smallint    not null,
  tenant         text        not null,
  operation_type text        not null,
  operation_key  text        not null,
  state          text        not null check (state in ('processing', 'done')),
  job_slot       smallint    not null,
  job_id         uuid        not null,
  token          bigint      not null,
  result         bytea,
  result_type    text,
  result_hash    bytea,
  created_at     timestamptz not null default now(),
  expires_at     timestamptz,
  primary key (slot, tenant, operation_type, operation_key)
);

-- +goose Down
drop table processed_operations, job_events, job_attempts, finished_jobs, jobs, idempotency_keys, meta;
