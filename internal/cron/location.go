package cron

import (
	"errors"
	"fmt"
	"time"
	// Small images have no time zones of their own.
	_ "time/tzdata"
)

// Location is the time zone of a name of the IANA database, such as Asia/Jakarta;
// "" is UTC. The machine's own zone has no name: replicas could differ in it.
func Location(name string) (*time.Location, error) {
	if name == "Local" {
		return nil, errors.New("cron: Local is the zone of one machine alone")
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("cron: %w", err)
	}
	return location, nil
}
