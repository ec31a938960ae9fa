package cron_test

import "testing"

func BenchmarkNext(b *testing.B) {
	times := parse(b, "* * * * * *", "Europe/Berlin")
	at := instant(b, "2026-03-08T00:00:00Z")
	for b.Loop() {
		at = times.Next(at)
	}
}
