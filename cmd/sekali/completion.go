package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// completeWord begins a line that asks how a command line may go on. The scripts
// below ask so; people need not know of it.
const completeWord = "__complete"

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help has the examples.
func (completionCommand) Help() string {
	return `Prints a script; the shell has to read it once per session. What is offered comes from the program itself,
so that a newer one needs no new script.

For bash, in ~/.bashrc:

  source <(sekali completion bash)

For zsh, in ~/.zshrc, after compinit:

  source <(sekali completion zsh)

For fish:

  sekali completion fish > ~/.config/fish/completions/sekali.fish`
}

// Run prints the script.
func (c completionCommand) Run(t terminal) error {
	_, err := io.WriteString(t.out, scripts[c.Shell])
	return err
}

// Each script hands the words of the line up to the cursor to the program, and
// takes back one line for each way to go on: the word, a tab, what it means. Where
// nothing comes back the shell offers files.
var scripts = map[string]string{
	"bash": `# bash completion for sekali
_sekali() {
  local line
  COMPREPLY=()
  while IFS= read -r line; do
    COMPREPLY+=("${line%%$'\t'*}")
  done < <("$1" ` + completeWord + ` "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _sekali sekali
`,
	"zsh": `#compdef sekali
_sekali() {
  local -a found
  local line
  for line in "${(@f)$("${words[1]}" ` + completeWord + ` "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    [[ -n $line ]] && found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
  done
  if (( ${#found} )); then
    _describe 'sekali' found
  else
    _files
  fi
}
compdef _sekali sekali
`,
	"fish": `# fish completion for sekali
function __sekali_complete
  set -l words (commandline -opc) (commandline -ct)
  command $words[1] ` + completeWord + ` $words[2..-1] 2>/dev/null
end
complete -c sekali -n 'test (count (__sekali_complete)) -gt 0' -f
complete -c sekali -a '(__sekali_complete)'
`,
}

// complete prints how a line may go on whose last word is not finished yet.
func (p *parser) complete(words []string, t terminal) int {
	if len(words) == 0 {
		words = []string{""}
	}
	for _, one := range completions(p.kong.Model.Node, words) {
		fmt.Fprintf(t.out, "%s\t%s\n", one.word, plain(one.means))
	}
	return 0
}

// completion is one way to go on.
type completion struct{ word, means string }

// completions walks the words that are finished, and offers what may follow.
func completions(root *kong.Node, words []string) []completion {
	at, positional := root, 0
	var open *kong.Flag // whose value comes next
	last := words[len(words)-1]
	for _, word := range words[:len(words)-1] {
		switch {
		case word == "=": // bash cuts --flag=value into three words
		case open != nil:
			open = nil
		case strings.HasPrefix(word, "-"):
			open = valueFollows(at, word)
		default:
			child := childOf(at, word)
			if child == nil {
				positional++
				continue
			}
			at, positional = child, 0
		}
	}
	if open != nil {
		return valued(open.Value, "", strings.TrimPrefix(last, "="))
	}
	if name, value, ok := strings.Cut(last, "="); ok && strings.HasPrefix(name, "--") {
		if flag := flagNamed(at, name); flag != nil {
			return valued(flag.Value, name+"=", value)
		}
		return nil
	}
	return starting(last, "", following(at, positional, last))
}

// following is what may stand after the words so far: commands and values where
// they fit, flags where a dash asks for them or nothing else fits.
func following(at *kong.Node, positional int, last string) []completion {
	var list []completion
	if strings.HasPrefix(last, "-") {
		for _, flag := range flagsOf(at) {
			list = append(list, completion{"--" + flag.Name, flag.Help})
		}
		return list
	}
	if positional == 0 {
		for _, child := range at.Children {
			if !child.Hidden {
				list = append(list, completion{child.Name, child.Help})
			}
		}
	}
	if positional < len(at.Positional) {
		list = append(list, valuesOf(at.Positional[positional])...)
	}
	return list
}

func starting(with, before string, list []completion) []completion {
	var found []completion
	for _, one := range list {
		if strings.HasPrefix(one.word, with) {
			found = append(found, completion{before + one.word, one.means})
		}
	}
	return found
}

// valueFollows is the flag if its value is the next word.
func valueFollows(at *kong.Node, word string) *kong.Flag {
	if strings.Contains(word, "=") {
		return nil
	}
	flag := flagNamed(at, word)
	if flag == nil || flag.IsBool() || flag.IsCounter() {
		return nil
	}
	return flag
}

func flagNamed(at *kong.Node, word string) *kong.Flag {
	for _, flag := range flagsOf(at) {
		if word == "--"+flag.Name || flag.Short != 0 && word == "-"+string(flag.Short) {
			return flag
		}
	}
	return nil
}

func childOf(at *kong.Node, word string) *kong.Node {
	for _, child := range at.Children {
		if child.Name == word {
			return child
		}
	}
	return nil
}

// valued offers the values that begin as typed, after what stands before them. Of
// several that are joined by commas it offers the last one.
func valued(v *kong.Value, before, typed string) []completion {
	offered := valuesOf(v)
	if comma := strings.LastIndexByte(typed, ','); comma >= 0 && v.Tag.Has("joined") {
		chosen := strings.Split(typed[:comma], ",")
		offered = slices.DeleteFunc(offered, func(one completion) bool { return slices.Contains(chosen, one.word) })
		before, typed = before+typed[:comma+1], typed[comma+1:]
	}
	return starting(typed, before, offered)
}

// valuesOf are the words that a flag or an argument takes, if it takes certain
// ones only. Those that somebody else checks are in its tag values:"…".
func valuesOf(v *kong.Value) []completion {
	words := v.EnumSlice()
	if more := v.Tag.Get("values"); more != "" {
		words = strings.Split(more, ",")
	}
	var list []completion
	for _, word := range slices.Sorted(slices.Values(words)) {
		if word != "" {
			list = append(list, completion{word, v.Help})
		}
	}
	return list
}
