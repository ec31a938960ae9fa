package api_test

import (
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/job"
)

func runs(worker string, n int) (list []job.Running) {
	for range n {
		list = append(list, job.Running{WorkerID: worker, Tenant: "acme"})
	}
	return list
}

func TestContract_Row114_SlotsAndWhyJobsWait(t *testing.T) {
	t.Parallel()
	pay := func(w job.Waiting, running []job.Running, busy int) map[job.Type]*job.TypeOverview {
		return map[job.Type]*job.TypeOverview{"pay": {Waiting: w, Running: running, Busy: busy}}
	}
	both := []job.Type{"pay", "mail"}
	tests := []struct {
		name       string
		overview   job.Overview
		slots      int
		free       int
		why        string
		heartbeats string
	}{
		{"nothing at all", job.Overview{}, 0, 0, "", ""},
		{"no process", job.Overview{Types: pay(job.Waiting{Pending: 2}, nil, 0)}, 0, 0, "2 because no process runs this type", ""},
		{
			"another type's process",
			job.Overview{Types: pay(job.Waiting{Pending: 1}, nil, 0), Workers: []job.Worker{{ID: "a", Slots: 9, Types: []job.Type{"mail"}}}},
			0, 0, "1 because no process runs this type", "",
		},
		{
			"processes that only accept",
			job.Overview{Types: pay(job.Waiting{Pending: 1}, nil, 0), Workers: []job.Worker{{ID: "a", Types: both, SeenAt: now}}},
			0, 0, "1 because the processes that know this type have no slots", "12:00:00",
		},
		{
			"a free slot",
			job.Overview{
				Types:   pay(job.Waiting{Pending: 3}, runs("a", 2), 2),
				Workers: []job.Worker{{ID: "b", Slots: 4, Types: both, SeenAt: now.Add(time.Second)}, {ID: "a", Slots: 4, Types: both, SeenAt: now}},
			},
			8, 6, "3 to be claimed, which is a matter of moments", "12:00:01",
		},
		{
			"another type holds the slots",
			job.Overview{
				Types: map[job.Type]*job.TypeOverview{
					"pay": {Waiting: job.Waiting{Pending: 1, Scheduled: 2, Retrying: 3, Blocked: 1}}, "mail": {Running: runs("a", 4), Busy: 4},
				},
				Workers: []job.Worker{{ID: "a", Slots: 4, Types: both, SeenAt: now}},
			},
			4, 0, "1 because all slots are busy; 2 until their time; 3 until their next attempt; 1 behind another job of the same business key", "12:00:00",
		},
		{
			"more run than are listed",
			job.Overview{Types: pay(job.Waiting{}, runs("a", 2), 5), Workers: []job.Worker{{ID: "a", Slots: 6, Types: both}}},
			6, 1, "", "00:00:00",
		},
		{
			"paused",
			job.Overview{
				Types:   map[job.Type]*job.TypeOverview{"pay": {PausedAt: now, Waiting: job.Waiting{Pending: 7}}},
				Workers: []job.Worker{{ID: "a", Slots: 4, Types: both, SeenAt: now}},
			},
			4, 4, "7 because the type is paused", "12:00:00",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e, found := api.ExecutorsView{Kinds: map[job.Type]string{"pay": "http"}}.One(tt.overview, "pay")
			why, seen := "", ""
			if e.Waiting.Why != nil {
				why = *e.Waiting.Why
			}
			if e.LastHeartbeatAt != nil {
				seen = e.LastHeartbeatAt.Format(time.TimeOnly)
			}
			if !found || e.Slots != tt.slots || e.Free != tt.free || why != tt.why || seen != tt.heartbeats && tt.heartbeats != "00:00:00" {
				t.Errorf("slots %d, free %d, why %q, heard of at %q", e.Slots, e.Free, why, seen)
			}
		})
	}
}

func TestContract_Row114_CountsAndTypesThatAreNotConfigured(t *testing.T) {
	t.Parallel()
	o := job.Overview{Capped: true, Types: map[job.Type]*job.TypeOverview{
		"pay":  {Ended: job.Ended{Succeeded: 1, Failed: 2, Lost: 3, Released: 4, Cancelled: 5, Mean: 1500 * time.Millisecond, P95: 4 * time.Second}},
		"gone": {Ended: job.Ended{Released: 4}, Waiting: job.Waiting{Scheduled: 1}},
	}}
	list := api.ExecutorsView{Kinds: map[job.Type]string{"pay": "http", "idle": "sql"}}.FromOverview(o)
	if len(list.Executors) != 3 || !list.Capped {
		t.Fatalf("%+v", list)
	}
	gone, idle, pay := list.Executors[0], list.Executors[1], list.Executors[2]
	if gone.Name != "gone" || gone.Configured || gone.Executor != nil || gone.MeanMS != nil || gone.P95MS != nil {
		t.Errorf("%+v", gone)
	}
	if idle.Name != "idle" || !idle.Configured || *idle.Executor != "sql" || idle.Waiting.Why != nil {
		t.Errorf("%+v", idle)
	}
	if pay.Succeeded != 1 || pay.Failed != 2 || pay.Lost != 3 || pay.Released != 4 || pay.Cancelled != 5 || *pay.MeanMS != 1500 || *pay.P95MS != 4000 || pay.WindowSeconds != 3600 {
		t.Errorf("%+v", pay)
	}
	if _, found := (api.ExecutorsView{}).One(o, "nothing"); found {
		t.Error("a type that is nowhere is found")
	}
}
