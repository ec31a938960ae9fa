package job

// Reaped is how much one round of retention took away.
type Reaped struct {
	Jobs       int // finished jobs whose retention was over; their keys are tombstones now
	Responses  int // stored responses without a job, likewise
	Tombstones int // whose time was over too
	Claims     int // of requests that nobody ended and nobody asked for any more
	Results    int // of jobs that are kept longer than their results
	// More reports that a batch was full: there may be more to take away.
	More bool
}
