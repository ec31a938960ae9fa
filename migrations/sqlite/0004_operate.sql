-- +goose Up

-- See Postgres for what all of this is.
insert into meta (name, value) values ('installation', lower(hex(randomblob(16))));

-- Jobs that wait for the holder of their
-- business key go in the order of their rowids.
alter table jobs add column earlier_attempts integer not null default 0;
alter table finished_jobs add column earlier_attempts integer not null default 0;
alter table jobs add column unknown_asks integer not null default 0;

drop index jobs_blocked;
create index jobs_queue    on jobs (slot, tenant, type, business_key) where blocked;
create index jobs_deadline on jobs (deadline) where deadline is not null and started_at is null;

alter table processed_operations add column job_key text not null default '';

create table type_state (
  type      text primary key,
  paused_at text
) strict;

create table workers (
  id      text    primary key,
  slots   integer not null,
  types   text    not null, -- JSON array
  seen_at text    not null
) strict;

create table attempt_tallies (
  type     text    not null,
  minute   text    not null,
  outcome  text    not null check (outcome in ('succeeded', 'failed', 'lost', 'released', 'cancelled')),
  bucket   integer not null,
  attempts integer not null,
  total_ms integer not null,
  primary key (type, minute, outcome, bucket)
) strict;
create index attempt_tallies_minute on attempt_tallies (minute);

-- +goose Down
delete from meta where name = 'installation';
drop table attempt_tallies;
drop table workers;
drop table type_state;
alter table processed_operations drop column job_key;
drop index jobs_deadline;
drop index jobs_queue;
create index jobs_blocked on jobs (slot, id) where blocked;
alter table jobs drop column unknown_asks;
alter table jobs drop column earlier_attempts;
alter table finished_jobs drop column earlier_attempts;
