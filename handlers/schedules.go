package handlers

import (
	"context"
	"net/http"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// schedules is what the handler needs of job.Schedules.
type schedules interface {
	Status(ctx context.Context, tenant idempotency.Tenant) ([]job.ScheduleStatus, error)
}

var _ schedules = (*job.Schedules)(nil)

// Schedules answers the requests about schedules.
type Schedules struct {
	domain     schedules
	allTenants bool
}

// NewSchedules makes the handler of /schedules. With allTenants it lists schedules
// whosever they are: there is one tenant.
func NewSchedules(d schedules, allTenants bool) *Schedules {
	return &Schedules{domain: d, allTenants: allTenants}
}

// List answers GET /schedules.
//
//	@ID	listSchedules
//	@Summary	List the schedules
//	@Description	Recurring work: what is submitted when, whether the last firing worked, and how its job stands.
//	@Tags	schedules
//	@Produce	application/problem+json
//	@Produce	json
//	@Success	200 {object} api.ScheduleList "The schedules."
//	@Router	/schedules [get]
func (s *Schedules) List(w http.ResponseWriter, r *http.Request) error {
	tenant := idempotency.TenantOf(r.Context())
	if s.allTenants {
		tenant = ""
	}
	list, err := s.domain.Status(r.Context(), tenant)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "private, no-cache")
	api.WriteJSON(w, http.StatusOK, api.FromSchedules(list))
	return nil
}
