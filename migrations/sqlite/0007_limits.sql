-- +goose Up

-- When the rate of a type lets its next job start.
alter table type_state add column next_at text;

-- Tenants take turns: a claim walks those that have pending jobs of a type, and
-- takes each one's earliest.
create index jobs_turns on jobs (type, tenant, claim_at, id) where state = 'pending' and not blocked;
drop index jobs_ready;

-- +goose Down
create index jobs_ready on jobs (type, claim_at, id) where state = 'pending' and not blocked;
drop index jobs_turns;
alter table type_state drop column next_at;
