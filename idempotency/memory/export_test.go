package memory

// Records is how many records the store holds in memory.
func Records(s *Store) int { return len(s.records) }
