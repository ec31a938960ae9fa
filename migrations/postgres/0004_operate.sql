-- +goose Up

-- What tells this database from every other one that uses the same Redis.
insert into meta (name, value) values ('installation', cast(gen_random_uuid() as text));

-- The order of arrival of jobs that wait for the holder of their business key:
-- by the database's clock, which all replicas share.
alter table jobs add column queued_at timestamptz not null default now();
-- Attempts before the last retry of an operator; max_attempts counts from there.
alter table jobs add column earlier_attempts int not null default 0;
alter table finished_jobs add column earlier_attempts int not null default 0;
-- Not zero while nobody knows what the last attempt did: one more than the asks
-- for it so far.
alter table jobs add column unknown_asks int not null default 0;

drop index jobs_blocked;
create index jobs_queue    on jobs (slot, tenant, type, business_key, queued_at, id) where blocked;
create index jobs_deadline on jobs (deadline) where deadline is not null and started_at is null;

-- The key of the job that has the operation, for when the job itself is gone.
alter table processed_operations add column job_key text not null default '';

-- Pauses hold for all processes and outlive restarts: a claim looks here.
create table type_state (
  type      text primary key,
  paused_at timestamptz
);

-- Processes that run jobs, as they last reported.
create table workers (
  id      text        primary key,
  slots   int         not null,
  types   text        not null, -- JSON array
  seen_at timestamptz not null
);

-- How attempts ended, and after about how long, by minute. A bucket is an index
-- into job.TallyBuckets.
create table attempt_tallies (
  type     text        not null,
  minute   timestamptz not null,
  outcome  text        not null check (outcome in ('succeeded', 'failed', 'lost', 'released', 'cancelled')),
  bucket   smallint    not null,
  attempts bigint      not null,
  total_ms bigint      not null,
  primary key (type, minute, outcome, bucket)
);
create index attempt_tallies_minute on attempt_tallies (minute);

-- +goose Down
delete from meta where name = 'installation';
drop table attempt_tallies, workers, type_state;
alter table processed_operations drop column job_key;
drop index jobs_deadline, jobs_queue;
create index jobs_blocked on jobs (slot, id) where blocked;
alter table jobs drop column unknown_asks, drop column earlier_attempts, drop column queued_at;
alter table finished_jobs drop column earlier_attempts;
