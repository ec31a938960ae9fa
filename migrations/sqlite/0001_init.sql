-- +goose Up

-- The same tables as on Postgres (see there for what they are), in SQLite's
-- types: ids are lower-case text, times are UTC text of fixed width with
-- milliseconds (2026-01-02T03:04:05.678Z), so that they compare as text.

-- What a program that opens this database must agree with; checked at start.
create table meta (
  name  text    primary key,
  value text    not null
) strict;
insert into meta (name, value) values ('slots', '256'), ('slot_hash', 'sha256-32:v1');

-- One row per (tenant, key): the claim on the key, and the stored response.
-- It lives in the slot of its key and points at the job, which may live in
-- another one. The expiry of a job's key is the job's; expires_at here is for
-- records without a job and for tombstones.
create table idempotency_keys (
  slot             integer not null,
  tenant           text    not null,
  key              text    not null,
  fingerprint      blob    not null, -- version, 16 bytes target, 32 bytes body
  state            text    not null check (state in ('in_progress', 'completed', 'interrupted', 'retired')),
  job_slot         integer,
  job_id           text,
  alias            integer not null default 0, -- bound to another key's job by a business key
  response_status  integer, -- the response: null for an alias or a tombstone
  response_headers blob,
  response_body    blob,
  owner            text, -- the claim, only while in progress
  claimed_until    text,
  attempt          integer not null default 1,
  final_state      text,
  created_at       text    not null,
  expires_at       text,
  primary key (slot, tenant, key),
  check ((state = 'in_progress') = (claimed_until is not null))
) strict, without rowid;
create index idempotency_keys_expiry on idempotency_keys (expires_at) where expires_at is not null;
create index idempotency_keys_alias  on idempotency_keys (job_id) where alias;

-- Unfinished jobs only, so that claiming, heartbeats and uniqueness cost the
-- same whatever the history.
create table jobs (
  slot                integer not null,
  id                  text    not null,
  tenant              text    not null,
  key                 text    not null,
  key_slot            integer not null,
  type                text    not null,
  state               text    not null check (state in ('scheduled', 'pending', 'processing', 'retrying')),
  blocked             integer not null default 0, -- waits for the holder of its business key
  payload             blob    not null,
  business_key        text,
  operation_key       text,
  callback_url        text,
  priority            integer not null default 0,
  run_at              text    not null,
  claim_at            text    not null, -- run_at shifted by the priority's head start
  deadline            text,
  timeout_ms          integer not null,
  max_attempts        integer not null,
  attempt             integer not null default 0,
  generation          integer not null default 1,
  version             integer not null default 1,
  token               integer not null default 0, -- fencing token: rises with each claim, never falls
  worker_id           text,
  locked_until        text,
  cancel_requested_at text,
  last_error          blob,
  created_at          text    not null,
  started_at          text, -- first claim
  claimed_at          text, -- last claim
  primary key (slot, id),
  check ((state = 'processing') = (locked_until is not null))
) strict;
create unique index jobs_business on jobs (slot, tenant, type, business_key) where business_key is not null and not blocked;
create index jobs_ready   on jobs (type, claim_at, id) where state = 'pending' and not blocked;
create index jobs_due     on jobs (run_at) where state in ('scheduled', 'retrying');
create index jobs_running on jobs (slot, id) where state = 'processing';
create index jobs_blocked on jobs (slot, id) where blocked;
create index jobs_list    on jobs (tenant, id);

-- Jobs that have ended.
create table finished_jobs (
  slot          integer not null,
  id            text    not null,
  tenant        text    not null,
  key           text    not null,
  key_slot      integer not null,
  type          text    not null,
  state         text    not null check (state in ('succeeded', 'failed', 'cancelled')),
  payload       blob    not null,
  business_key  text,
  operation_key text,
  callback_url  text,
  priority      integer not null,
  run_at        text    not null,
  deadline      text,
  timeout_ms    integer not null,
  max_attempts  integer not null,
  attempt       integer not null,
  generation    integer not null,
  version       integer not null,
  token         integer not null,
  worker_id     text,
  last_error    blob,
  created_at    text    not null,
  started_at    text,
  claimed_at    text,
  outcome       text,
  duplicate_of  text,
  result        blob,
  result_type   text,
  result_hash   blob,
  finished_at   text    not null,
  expires_at    text    not null,
  primary key (slot, id)
) strict;
create index finished_jobs_list   on finished_jobs (tenant, id);
create index finished_jobs_expiry on finished_jobs (expires_at);

-- One row per claim that has ended, written with the end, keyed by its token.
create table job_attempts (
  slot        integer not null,
  job_id      text    not null,
  token       integer not null,
  number      integer not null,
  outcome     text    not null check (outcome in ('succeeded', 'failed', 'lost', 'released', 'cancelled')),
  worker_id   text    not null,
  error       blob,
  started_at  text    not null,
  finished_at text    not null,
  primary key (slot, job_id, token)
) strict;

-- Near misses only; the ordinary life is read from the job and its attempts.
create table job_events (
  slot       integer not null,
  job_id     text    not null,
  id         text    not null,
  event      text    not null,
  attempt    int,
  data       blob,
  created_at text    not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  primary key (slot, job_id, id)
) strict;

-- Business operations that are done, or being done by one job.
create table processed_operations (
  slot           integer not null,
  tenant         text    not null,
  operation_type text    not null,
  operation_key  text    not null,
  state          text    not null check (state in ('processing', 'done')),
  job_slot       integer not null,
  job_id         text    not null,
  token          integer not null,
  result         blob,
  result_type    text,
  result_hash    blob,
  created_at     text    not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  expires_at     text,
  primary key (slot, tenant, operation_type, operation_key)
) strict;

-- +goose Down
drop table processed_operations;
drop table job_events;
drop table job_attempts;
drop table finished_jobs;
drop table jobs;
drop table idempotency_keys;
drop table meta;
