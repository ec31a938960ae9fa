package gateway

import (
	"time"
)

// The judgements of doctor, for tests that give them readings of their own.
var (
	JudgeServer      = judgeServer
	JudgeConnections = judgeConnections
	JudgeUpkeep      = judgeUpkeep
	JudgeFile        = judgeFile
	JudgeJobs        = judgeJobs
	JudgeConfig      = judgeConfig
)

// JudgeRedis judges what INFO tells.
func JudgeRedis(latency time.Duration, info map[string]string) []Finding {
	return judgeRedis(redisReading{latency: latency, info: info}, "redis://cache")
}

// JudgeSpace judges the bytes that are left.
func JudgeSpace(free int64) []Finding { return judgeSpace(free) }
