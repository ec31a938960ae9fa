-- +goose Up

-- A file has no partitions, and no settings of upkeep for each table: there is
-- nothing to do. The number is that of the same step on Postgres.
select 1;

-- +goose Down
select 1;
