-- +goose Up

-- API keys. A reference table: it is small, read whole by every process, and
-- has no slot. Of a token only the hash of its secret is kept.
create table api_tokens (
  id          text primary key, -- part of the token's text; no secret
  hash        blob not null unique,
  tenant      text not null,
  name        text not null,
  permissions text not null, -- words joined by commas
  created_at  text not null,
  expires_at  text,
  revoked_at  text
) strict;

-- +goose Down
drop table api_tokens;
