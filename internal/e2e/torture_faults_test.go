//go:build torture

package e2e_test

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// replicaFaults hurt the replicas: stopped past its lease and continued, killed.
func replicaFaults(w *tortured) []fault {
	return []fault{
		{"stop a replica past its lease", func() {
			r := w.replicas[w.random.IntN(len(w.replicas))]
			g := r.gateway()
			g.pause()
			timer := time.NewTimer(2 * tortureLease)
			<-timer.C
			g.resume()
		}},
		{"stop two replicas for a moment", func() {
			a, b := w.replicas[0].gateway(), w.replicas[1].gateway()
			a.pause()
			b.pause()
			timer := time.NewTimer(time.Duration(200+w.random.IntN(1500)) * time.Millisecond)
			<-timer.C
			a.resume()
			b.resume()
		}},
		{"kill a replica", func() { w.replicas[w.random.IntN(len(w.replicas))].restart(true) }},
		{"end a replica", func() { w.replicas[w.random.IntN(len(w.replicas))].restart(false) }},
	}
}

// redisFaults take Redis away or its contents.
func redisFaults(w *tortured) []fault {
	return []fault{
		{"flush Redis", func() { w.command("flushall") }},
		{"pause Redis", func() { w.command("client", "pause", 300+w.random.IntN(1500), "all") }},
		{"kill Redis", func() {
			_ = w.redis.Kill()
			timer := time.NewTimer(time.Duration(w.random.IntN(1500)) * time.Millisecond)
			<-timer.C
			w.startRedis()
		}},
		{"restart Redis", w.startRedis},
	}
}

// redisRefusals make Redis answer, with errors.
func redisRefusals(w *tortured) []fault {
	aWhile := func() {
		timer := time.NewTimer(time.Duration(500+w.random.IntN(1500)) * time.Millisecond)
		<-timer.C
	}
	return []fault{
		{"Redis is out of memory", func() {
			w.command("config", "set", "maxmemory-policy", "noeviction")
			w.command("config", "set", "maxmemory", "1")
			aWhile()
			w.command("config", "set", "maxmemory", "0")
		}},
		{"Redis wants another password", func() {
			w.command("config", "set", "requirepass", "another")
			w.command("client", "kill", "type", "normal", "skipme", "yes")
			aWhile()
			w.startRedis()
		}},
		{"Redis forgets its scripts", func() { w.command("script", "flush") }},
	}
}

// lockFaults take single locks away, or give them to somebody else.
func lockFaults(w *tortured) []fault {
	locks := func() []string {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		found, _ := w.client.Keys(ctx, "sekali:lock:*").Result()
		return found
	}
	return []fault{
		{"delete locks", func() {
			for _, name := range locks() {
				w.command("del", name)
			}
		}},
		{"give locks to others", func() {
			for _, name := range locks() {
				w.command("set", name, "somebody else", "px", 400)
			}
		}},
	}
}

// command sends one command; Redis may be away.
func (w *tortured) command(words ...any) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.client.Do(ctx, words...).Err()
}

func (w *tortured) startRedis() {
	if err := w.redis.Restart(); err != nil {
		w.t.Error(err)
	}
}

// heal ends all faults.
func (w *tortured) heal() {
	if w.redis != nil {
		w.startRedis()
	}
	for _, r := range w.replicas {
		if r.gateway().dead() {
			r.restart(true)
		}
	}
}

func newRedisClient(url string) *redis.Client {
	options, err := redis.ParseURL(url)
	if err != nil {
		panic(err)
	}
	options.MaxRetries = -1
	return redis.NewClient(options)
}
