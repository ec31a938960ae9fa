-- +goose Up

-- When the rate of a type lets its next job start. The row is also what claims of
-- a type with a limit lock; it changes with each of them, in no index.
alter table type_state add column next_at timestamptz;
alter table type_state set (fillfactor = 50);

-- Tenants take turns: a claim walks those that have pending jobs of a type, and
-- takes each one's earliest. The index serves in place of jobs_ready. Programs from
-- before this step, while they still run, sort what is pending of a type with it
-- (docs/limits.md says what that costs).
create index jobs_turns on jobs (type, tenant, claim_at, id) where state = 'pending' and not blocked;
drop index jobs_ready;

-- +goose Down
create index jobs_ready on jobs (type, claim_at, id) where state = 'pending' and not blocked;
drop index jobs_turns;
alter table type_state reset (fillfactor);
alter table type_state drop column next_at;
