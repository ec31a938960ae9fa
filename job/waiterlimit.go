package job

import (
	"sync"

	"github.com/sekali/sekali/idempotency"
)

// WaiterLimit bounds how many requests may wait at once in this process, all
// together and of one tenant: each holds a connection, and one tenant's patience
// must not take every place (contract row 90). The zero value lets nobody wait.
type WaiterLimit struct {
	total, perTenant int

	mu      sync.Mutex
	waiting int
	tenants map[idempotency.Tenant]int // only those that wait
}

// NewWaiterLimit returns a limit with room for total, of which one tenant may
// take perTenant.
func NewWaiterLimit(total, perTenant int) *WaiterLimit {
	return &WaiterLimit{total: total, perTenant: perTenant, tenants: map[idempotency.Tenant]int{}}
}

// Enter takes a place for a request of the tenant, until leave is called, which
// must be once.
func (l *WaiterLimit) Enter(t idempotency.Tenant) (leave func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting >= l.total || l.tenants[t] >= l.perTenant {
		return nil, false
	}
	l.waiting++
	l.tenants[t]++
	return func() { l.leave(t) }, true
}

func (l *WaiterLimit) leave(t idempotency.Tenant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
	if l.tenants[t]--; l.tenants[t] == 0 {
		delete(l.tenants, t)
	}
}
