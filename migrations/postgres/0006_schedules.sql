-- +goose Up

-- How far each schedule has come; what it is stands in the configuration. That a
-- firing happens once is not decided here but by its key: this says what a gateway
-- that was away has missed. There is no slot: the rows are few, and the same for all.
create table schedules (
  name       text        primary key,
  definition text        not null,            -- cron expression and time zone that last_time is of
  last_time  timestamptz not null,            -- every firing up to here is settled
  fired_time timestamptz,                     -- the last one that was made
  last_error text        not null default ''  -- why the last one could not be made, or not yet
);

-- +goose Down
drop table schedules;
