package vocabulary_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// root is the folder of the module, seen from this package.
const root = "../.."

// forbiddenInNames maps words that no name of ours may contain to the word of
// the glossary. Only words stand here that are never right: "lock", "run" or
// "error" have their own meanings elsewhere.
var forbiddenInNames = map[string]string{
	"enqueue": "submit", "enqueued": "submitted", "dequeue": "claim", "dequeued": "claimed",
	"dupe": "duplicate", "dupes": "duplicates", "dedupe": "processed operation", "dedup": "processed operation",
	"redrive": "retry", "redriven": "retried", "dlq": "failed",
	"deadletter": "failed", "discarded": "failed",
	"janitor": "rescuer or reaper", "reclaimer": "rescuer", "recoverer": "rescuer", "cleaner": "reaper",
	"task": "job", "tasks": "jobs", "nonce": "owner token",
	"canceled": "cancelled", "keepalive": "heartbeat", "renew": "extend or refresh", "renewal": "heartbeat",
	"dao": "repository", "impl": "a name for what is special about it", "manager": "a name for what it does",
	"helper": "a name for what it does", "helpers": "a name for what it does",
	"util": "a name for what it does", "utils": "a name for what it does",
	"misc": "a name for what it does", "common": "a name for what it does",
	"fn": "a verb, or func",
}

// forbiddenInText are words that are wrong in comments and SQL too.
var forbiddenInText = regexp.MustCompile(
	`(?i)\b(enqueued?|dequeued?|dupes?|redriven?|dlq|dead[- ]lettered|visibility timeout|fencing epoch|request hash)\b`)

// hump is where a word of a name in camel case ends: the jI of jobID, the PF of
// HTTPFn, but not the Ds of IDs.
var hump = regexp.MustCompile(`([a-z])([A-Z])|([A-Z])([A-Z][a-rt-z])`)

func TestNamesUseTheGlossary(t *testing.T) {
	t.Parallel()
	files := token.NewFileSet()
	eachFile(t, ".go", func(path, text string) {
		if strings.HasSuffix(path, ".gen.go") {
			return // the generator chose its names
		}
		file, err := parser.ParseFile(files, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return
		}
		for _, name := range declared(file) {
			for _, word := range wordsOf(name.Name) {
				if better, ok := forbiddenInNames[word]; ok {
					t.Errorf("%s: %s: not %q, but: %s", files.Position(name.Pos()), name.Name, word, better)
				}
			}
		}
		for _, group := range file.Comments {
			for _, word := range forbiddenInText.FindAllString(group.Text(), -1) {
				t.Errorf("%s: %q is no word of the glossary", files.Position(group.Pos()), word)
			}
		}
	})
}

func TestSQLUsesTheGlossary(t *testing.T) {
	t.Parallel()
	eachFile(t, ".sql", func(path, text string) {
		for number, line := range strings.Split(text, "\n") {
			for _, word := range forbiddenInText.FindAllString(line, -1) {
				t.Errorf("%s:%d: %q is no word of the glossary", path, number+1, word)
			}
		}
	})
}

func TestWordsOf(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"enqueueJob":   "enqueue job",
		"HTTPFn":       "http fn",
		"max_attempts": "max attempts",
		"jobIDs":       "job ids",
		"Fnord":        "fnord",
	} {
		if got := strings.Join(wordsOf(name), " "); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// declared returns the names that a file declares, as against those it uses.
func declared(file *ast.File) []*ast.Ident {
	names := []*ast.Ident{file.Name}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			names = append(names, n.Name)
		case *ast.TypeSpec:
			names = append(names, n.Name)
		case *ast.ValueSpec:
			names = append(names, n.Names...)
		case *ast.Field:
			names = append(names, n.Names...)
		case *ast.AssignStmt:
			names = append(names, assigned(n)...)
		}
		return true
	})
	return names
}

func assigned(n *ast.AssignStmt) []*ast.Ident {
	if n.Tok != token.DEFINE {
		return nil
	}
	var names []*ast.Ident
	for _, left := range n.Lhs {
		if name, ok := left.(*ast.Ident); ok {
			names = append(names, name)
		}
	}
	return names
}

// wordsOf splits a name at underscores, digits and humps: HTTPFn is http and fn.
func wordsOf(name string) []string {
	spaced := hump.ReplaceAllString(name, "$1$3 $2$4")
	return strings.FieldsFunc(strings.ToLower(spaced), func(r rune) bool { return !unicode.IsLetter(r) })
}

func eachFile(t *testing.T, extension string, check func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "bin" || entry.Name() == "vocabulary"):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != extension:
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		check(path, string(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
