-- +goose Up

-- When the record of a tombstone expired; its expires_at is when the tombstone
-- itself may go. Of a claim in progress expires_at is when nobody is expected to
-- ask for it any more.
alter table idempotency_keys add column retired_at text;

-- When the result may go before its job does. The hash stays and tells that
-- there was one.
alter table finished_jobs add column result_expires_at text;
create index finished_jobs_results on finished_jobs (result_expires_at) where result_expires_at is not null and result is not null;

-- +goose Down
drop index finished_jobs_results;
alter table finished_jobs drop column result_expires_at;
alter table idempotency_keys drop column retired_at;
