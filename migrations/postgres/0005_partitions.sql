-- +goose Up

-- Whoever runs this with many finished jobs: three tables are read once while
-- they are locked (about 0.7 s for each million of finished jobs). A lock that is
-- not free within ten seconds ends the step, which is then run again: the
-- traffic that queues behind it would wait as long.
set local lock_timeout = '10s';

-- Partitions are weeks of job ids, and so of the time of acceptance; the reaper
-- makes them ahead and drops those that have ended and are empty
-- (docs/adr/0015). What is there already becomes the partition "before", up to
-- the first week that begins a day from now or later: no id can reach that far
-- while this runs. The default partition is new and empty, because to make a
-- partition is to read the default one through; it stays small, for it takes
-- only rows of weeks without a partition: those of jobs that end after their
-- week was dropped, and all rows while nobody may make partitions.
alter table job_attempts rename to job_attempts_before;
alter index job_attempts_pkey rename to job_attempts_before_pkey;
create table job_attempts (
  slot        smallint    not null,
  job_id      uuid        not null,
  token       bigint      not null,
  number      int         not null,
  outcome     text        not null constraint job_attempts_outcome_check check (outcome in ('succeeded', 'failed', 'lost', 'released', 'cancelled')),
  worker_id   text        not null,
  error       bytea,
  started_at  timestamptz not null,
  finished_at timestamptz not null,
  primary key (slot, job_id, token)
) partition by range (job_id);
create table job_attempts_rest partition of job_attempts default;

alter table job_events rename to job_events_before;
alter index job_events_pkey rename to job_events_before_pkey;
create table job_events (
  slot       smallint    not null,
  job_id     uuid        not null,
  id         uuid        not null,
  event      text        not null,
  attempt    int,
  data       bytea,
  created_at timestamptz not null default now(),
  primary key (slot, job_id, id)
) partition by range (job_id);
create table job_events_rest partition of job_events default;

alter table finished_jobs detach partition finished_jobs_rest;
alter table finished_jobs_rest rename to finished_jobs_before;
alter index finished_jobs_rest_pkey rename to finished_jobs_before_pkey;
alter index finished_jobs_rest_tenant_id_idx rename to finished_jobs_before_tenant_id_idx;
alter index finished_jobs_rest_expires_at_idx rename to finished_jobs_before_expires_at_idx;
alter index finished_jobs_rest_result_expires_at_idx rename to finished_jobs_before_result_expires_at_idx;
create table finished_jobs_rest partition of finished_jobs default;

-- +goose StatementBegin
do $$
declare
  day  constant bigint := 24 * 3600 * 1000;
  week constant bigint := 7 * day;
  edge constant bigint := (cast(extract(epoch from now()) * 1000 as bigint) + day) / week * week + week;
  parent text;
begin
  foreach parent in array array['finished_jobs', 'job_attempts', 'job_events'] loop
    execute format('alter table %1$s attach partition %1$s_before for values from (minvalue) to (%2$L)',
      parent, cast(rpad(lpad(to_hex(edge), 12, '0'), 32, '0') as uuid));
  end loop;
end $$;
-- +goose StatementEnd

-- Settings of upkeep. Those of partitions stand here for "before", and in the
-- program for the weeks: a table with partitions takes none.

-- Unfinished jobs come and go by the thousand a second, and each leaves some dead
-- rows. The table is small: to vacuum it takes less than a second, and a pause
-- after every few pages would only let it grow meanwhile. Large payloads lie in a
-- table of their own, with thresholds of its own.
alter table jobs set (
  autovacuum_vacuum_cost_delay = 0,
  toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 2000, toast.autovacuum_vacuum_cost_delay = 0);

-- A key is written once and changes once, when it becomes a tombstone, days later
-- and in an index: room beside it would stay empty, hence no fill factor. The
-- table is the largest that is never dropped. A fifth of it, which is the usual
-- threshold, would be weeks of keys at once.
alter table idempotency_keys set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);

-- An operation changes once, moments after it was taken, and in no index: with a
-- little room it changes in its page, and writes to no index again (measured with
-- batches of fifty: 54 % of the changes in place, and 13 % without the room).
alter table processed_operations set (fillfactor = 85);

-- A few rows that change again and again, in no index: room for two versions of
-- each keeps them in their pages.
alter table workers set (fillfactor = 50);
alter table attempt_tallies set (fillfactor = 50);

-- Rows of jobs that have ended are not touched again until they go. To vacuum
-- what was only inserted would visit each page once more, for a map that no
-- statement of ours reads and a freezing that most rows do not live to need; those
-- that do are frozen when their age asks for it. And where rows go, all of them
-- will, and the space is used by nobody: a vacuum, which reads all indexes, is for
-- the reaper's walk over dead entries, and can wait for half of the rows. The last
-- one finds all of them dead and leaves an empty file, which is then dropped.
alter table finished_jobs_before set (
  autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.5);
alter table job_attempts_before set (
  autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.5);
alter table job_events_before set (
  autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.5);

-- +goose Down
alter table jobs reset (
  autovacuum_vacuum_cost_delay,
  toast.autovacuum_vacuum_scale_factor, toast.autovacuum_vacuum_threshold, toast.autovacuum_vacuum_cost_delay);
alter table idempotency_keys reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_insert_scale_factor);
alter table processed_operations reset (fillfactor);
alter table workers reset (fillfactor);
alter table attempt_tallies reset (fillfactor);

-- All rows go to the default partitions, one week after the other.
-- +goose StatementBegin
do $$
declare
  leaf record;
begin
  for leaf in
    select p.relname as parent, c.relname as name
    from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent
    where p.relnamespace = cast(current_schema() as regnamespace) and p.relname in ('finished_jobs', 'job_attempts', 'job_events')
      and pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'
  loop
    execute format('alter table %I detach partition %I', leaf.parent, leaf.name);
    execute format('insert into %I select * from %I', leaf.parent, leaf.name);
    execute format('drop table %I', leaf.name);
  end loop;
end $$;
-- +goose StatementEnd
alter table job_attempts detach partition job_attempts_rest;
drop table job_attempts;
alter table job_attempts_rest rename to job_attempts;
alter index job_attempts_rest_pkey rename to job_attempts_pkey;
alter table job_events detach partition job_events_rest;
drop table job_events;
alter table job_events_rest rename to job_events;
alter index job_events_rest_pkey rename to job_events_pkey;
