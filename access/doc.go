// Package access knows who calls: API keys (tokens), the tenant that each
// speaks for, and what it permits.
//
// What it promises:
//
//   - Of a token only a hash is kept. Whoever reads the database cannot call.
//   - A token that is revoked or has expired is refused by every process within
//     a second.
//   - A token that nobody can look up, because the database is away, is neither
//     good nor bad: the caller gets an error of the database, is not let in and
//     is not told that its token is wrong.
//   - A token that does not exist, one with a wrong secret, a revoked and an
//     expired one cannot be told apart, neither by the answer nor by its time.
//
// It does not limit how often somebody may guess: a secret has 130 random bits.
package access
