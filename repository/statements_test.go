package repository_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sekali/sekali/repository"
)

// statements finds every SQL statement of the package's source: all texts that
// begin like one, constants put together included.
func statements(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	verb := regexp.MustCompile(`(?i)^\s*(with|select|insert|update|delete|savepoint|release|rollback|begin|set|lock|create|drop|alter|listen|notify)\b[^"]*\s`)
	found := map[string]string{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			// Statements are written in back quotes; messages are not.
			if !ok || lit.Kind != token.STRING || !strings.HasPrefix(lit.Value, "`") {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			if verb.MatchString(text) {
				found[name+": "+strings.Join(strings.Fields(text), " ")[:min(60, len(strings.Join(strings.Fields(text), " ")))]] = text
			}
			return true
		})
	}
	return found
}

// TestStatements holds every statement to the rules that let the same schema
// run on a distributed Postgres (docs/adr/0002).
func TestStatements(t *testing.T) {
	t.Parallel()
	all := statements(t)
	// These are put together of two texts each.
	all["claimNextSQL"], all["claimInTurnSQL"] = repository.ClaimNextSQL, repository.ClaimInTurnSQL
	if len(all) < 20 {
		t.Fatalf("only %d statements were found", len(all))
	}
	for name, statement := range all {
		if name == "notices.go: select pg_notify('" {
			continue // a hint, by itself; a database that does not have it goes on without
		}
		for _, broken := range brokenRules(statement) {
			t.Errorf("%s…: %s", name, broken)
		}
	}
}

// TestStatements_RulesBite shows that each rule would be noticed.
func TestStatements_RulesBite(t *testing.T) {
	t.Parallel()
	for statement, want := range map[string]string{
		`SELECT id FROM jobs`:                                                                    "upper case",
		`select * from jobs where slot = $1 and id = $2`:                                         "lists its columns",
		`select id from jobs where id = $1`:                                                      "names the slot",
		`select pg_advisory_lock(1)`:                                                             "pg_advisory",
		`create trigger x`:                                                                       "trigger",
		`update jobs set claimed_at = clock_timestamp() where slot = $1`:                         "clock_timestamp",
		`select slot from jobs where state = $1`:                                                 "literal",
		`delete from jobs where slot = $1 and id = $2 and state = 'processing'`:                  "token",
		`update jobs set state = 'pending' where slot = $1 and id = $2 and state = 'processing'`: "token",
		`insert into jobs values ($1)`:                                                           "names its columns",
	} {
		if broken := strings.Join(brokenRules(statement), "; "); !strings.Contains(broken, want) {
			t.Errorf("%s: broken are %q, want %q among them", statement, broken, want)
		}
	}
}

var (
	quoted     = regexp.MustCompile(`'[^']*'`)
	star       = regexp.MustCompile(`(select|returning|,)\s+(\w+\.)?\*`)
	forbidden  = regexp.MustCompile(`pg_advisory\w*|pg_try_advisory\w*|trigger|clock_timestamp|nextval|serial\b|pg_notify|\blisten\b|set_config|temp(orary)? table`)
	byID       = regexp.MustCompile(`\b(\w+\.)?(job_)?id\s*=`)
	bySlot     = regexp.MustCompile(`\b(\w+\.)?(job_)?slot\b`)
	stateParam = regexp.MustCompile(`\b(\w+\.)?state\s*(=|<>|in)\s*\(?\$`)
	endsLease  = regexp.MustCompile(`(delete from jobs|update jobs)`)
	bareInsert = regexp.MustCompile(`insert into \w+\s+(values|select)`)
)

// brokenRules lists the rules that a statement breaks.
func brokenRules(statement string) []string {
	var broken []string
	bare := quoted.ReplaceAllString(statement, "''")
	check := func(bad bool, rule string) {
		if bad {
			broken = append(broken, rule)
		}
	}
	check(bare != strings.ToLower(bare), "there is upper case in it")
	check(star.MatchString(bare), "a statement lists its columns")
	if word := forbidden.FindString(bare); word != "" {
		broken = append(broken, word+" does not work everywhere")
	}
	slotless := strings.Contains(bare, "api_tokens") || strings.Contains(bare, "from workers") // small, and the same for all shards
	check(byID.MatchString(bare) && !bySlot.MatchString(bare) && !slotless, "who names an id names the slot")
	// The list filters by the state that a client asks for, through another index.
	check(stateParam.MatchString(bare) && !strings.Contains(bare, "jobs_list") && !strings.Contains(bare, "substr(key"), "a state is a literal")
	ends := endsLease.MatchString(bare) && strings.Contains(statement, "state = 'processing'") && !strings.Contains(bare, "token + 1")
	check(ends && !strings.Contains(bare, "token = "), "what ends or extends a lease names its token")
	check(bareInsert.MatchString(bare), "an insert names its columns")
	return broken
}
