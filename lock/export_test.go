package lock

// Held is how many locks the locker keeps in memory.
func Held(m *Memory) int { return len(m.held) }
