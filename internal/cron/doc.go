// Package cron tells when a schedule is due: what a cron expression means in a
// time zone.
//
// A library reads the expression. What happens when clocks change is decided
// here, because it is a promise to users: an expression is looked at on a clock
// that never changes, and its times are then placed into the zone. One that names
// hours of the day (02:30) has each of its times once a day: a time that the
// zone skips comes at the end of the gap, and of one that comes twice the first
// counts. One that holds in every hour (every second, at a quarter past) goes on by
// real time: it is due in both of two equal hours, and never in one that is skipped.
package cron
