-- +goose Up

-- See Postgres for what all of this is.
create table schedules (
  name       text primary key,
  definition text not null,
  last_time  text not null,
  fired_time text,
  last_error text not null default ''
) strict;

-- +goose Down
drop table schedules;
