// Package vocabulary holds one test, which keeps the words of the glossary: one
// word for one concept, in names, comments and SQL.
package vocabulary
