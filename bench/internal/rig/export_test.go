package rig

import "time"

// ServesAt is servesAt.
var ServesAt = servesAt

// ParseStat returns the parent and the processor time of a line.
func ParseStat(line string) (parent int, own time.Duration, err error) {
	s, err := parseStat(line)
	return s.parent, s.own, err
}
