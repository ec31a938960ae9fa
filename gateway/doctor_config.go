package gateway

import "net"

// otherFiles are those that a process has open beside the connections of clients
// and to the database: listeners, logs, Redis, receivers, programs.
const otherFiles = 200

// judgeConfig looks at what a correct configuration may still get wrong. files is
// how many files this process may have open; 0: not known.
func judgeConfig(cfg Config, files uint64) []Finding {
	var f findingList
	host, _, _ := net.SplitHostPort(cfg.Listen)
	switch {
	case cfg.Auth.Mode == authKey:
		f.ok("auth", "every caller needs an API key")
	case isLoopback(host):
		f.ok("auth", "nobody is asked who calls, and only this machine can (%s)", cfg.Listen)
	default:
		f.warn("auth", "set auth.mode: api_key, or make sure that something in front checks who calls",
			"nobody is asked who calls, and %s is no loopback address (auth.allow_public)", cfg.Listen)
	}
	needed := uint64(cfg.Limits.Waiters + cfg.DatabaseMaxConns + otherFiles)
	switch {
	case files == 0: // not known on this system
	case files < needed:
		f.warn("limits.waiters", "raise the limit of open files (ulimit -n, LimitNOFILE=), or lower limits.waiters",
			"%d clients may wait at once, which takes about %d open files; processes that are started from here may have %d", cfg.Limits.Waiters, needed, files)
	default:
		f.ok("limits.waiters", "%d clients may wait at once; there may be %d open files", cfg.Limits.Waiters, files)
	}
	return f
}
