package handlers_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/handlers"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// timetable is a fake of job.Schedules.
type timetable struct {
	list []job.ScheduleStatus
	err  error
	of   idempotency.Tenant
}

func (f *timetable) Status(_ context.Context, tenant idempotency.Tenant) ([]job.ScheduleStatus, error) {
	f.of = tenant
	return f.list, f.err
}

func listSchedules(t *testing.T, f *timetable, allTenants bool) (*httptest.ResponseRecorder, error) {
	t.Helper()
	w := httptest.NewRecorder()
	ctx := idempotency.WithTenant(t.Context(), "acme")
	err := handlers.NewSchedules(f, allTenants).List(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/schedules", nil))
	return w, err
}

func TestSchedules_List(t *testing.T) {
	t.Parallel()
	nightly := job.Schedule{Name: "nightly", Type: "report", Cron: "0 2 * * *", Timezone: "Asia/Jakarta", Missed: job.MissedRunLast}
	f := &timetable{list: []job.ScheduleStatus{
		{Schedule: nightly, NextTime: start.Add(time.Hour)},
		{Schedule: nightly, LastTime: start, NextTime: start.Add(time.Hour), LastKey: "schedule:nightly:x", LastStatus: job.Failed, LastError: "late"},
	}}
	w, err := listSchedules(t, f, false)
	if err != nil || f.of != "acme" || w.Header().Get("Cache-Control") != "private, no-cache" {
		t.Fatalf("%v, of %q, %v", err, f.of, w.Header())
	}
	var list api.ScheduleList
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list.Schedules) != 2 {
		t.Fatalf("%s: %v", w.Body, err)
	}
	first, second := list.Schedules[0], list.Schedules[1]
	if first.LastTime != nil || first.LastJob != nil || first.LastError != nil || !first.NextTime.Equal(start.Add(time.Hour)) || first.Timezone != "Asia/Jakarta" {
		t.Errorf("first %+v", first)
	}
	if !second.LastTime.Equal(start) || *second.LastJob != (api.ScheduleJob{Key: "schedule:nightly:x", Status: "failed"}) || *second.LastError != "late" {
		t.Errorf("second %+v", second)
	}
}

func TestSchedules_OfAllTenantsWhereThereIsOne(t *testing.T) {
	t.Parallel()
	f := &timetable{of: "?"}
	if w, err := listSchedules(t, f, true); err != nil || f.of != "" || w.Body.String() != "{\"schedules\":[]}\n" && w.Body.String() != `{"schedules":[]}` {
		t.Errorf("%v, of %q, %s", err, f.of, w.Body)
	}
	f.err = job.ErrUnavailable
	if _, err := listSchedules(t, f, true); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
}
