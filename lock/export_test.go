package lock

// Held is how many locks the locker keeps in memory.
func Held(m *Memory) int { return len(m.held) }

// Waiting is how many calls wait for their pipeline.
func Waiting(r *Redis) int { return r.calls.Waiting() }
