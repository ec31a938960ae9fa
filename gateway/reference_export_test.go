package gateway

// Variable is the environment variable of a key.
var Variable = variable

// InForce fills in what a job type and a proxy rule take when they say nothing.
func InForce() (JobType, ProxyRule) {
	s := JobType{}.settings(Default())
	t := JobType{OnBusinessKeyConflict: string(s.OnConflict), OnUnknownOutcome: string(s.OnUnknown), Lock: string(s.Lock)}
	return t, ProxyRule{}.filled()
}

// ScheduleInForce likewise, for a schedule.
func ScheduleInForce() Schedule { return Schedule{}.withDefaults() }
