package cli

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
)

// scripts ask "dlock __complete WORD..." for what the last word may become, and complete the names
// of files if there is nothing. They evaluate nothing.
var scripts = map[string]string{
	"bash": `_dlock() {
    local word words line=${COMP_LINE:0:COMP_POINT} IFS=$' \t\n'
    read -ra words <<<"$line."
    word=${words[${#words[@]}-1]}
    words[${#words[@]}-1]=${word%.}
    IFS=$'\n'
    COMPREPLY=($(dlock __complete "${words[@]:1}" 2>/dev/null | cut -f1))
    # What stands before the last of these characters is a word of its own for bash.
    case $word in *[:=@]*) COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[:=@]}"}"}") ;; esac
}
complete -o default -F _dlock dlock
`,
	"zsh": `#compdef dlock
_dlock() {
    local -a lines values
    lines=("${(@f)$(dlock __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    lines=("${(@)lines:#}")
    values=("${(@)lines%%$'\t'*}")
    lines=("${(@)lines/$'\t'/  }")
    if (( $#values )); then compadd -l -d lines -a values; else _files; fi
}
compdef _dlock dlock
`,
	"fish": `function __dlock_complete
    set -l words (commandline -opc) (commandline -ct)
    dlock __complete $words[2..-1] 2>/dev/null
end
complete -c dlock -f -a '(__dlock_complete)'
complete -c dlock -n 'contains -- -- (commandline -opc)' -F
`,
}

func newCompletion(c *call) func() error {
	return func() error {
		if err := c.want(1, 1); err != nil {
			return err
		}
		script, ok := scripts[c.args[0]]
		if !ok {
			return failf(exitUsage, "there is no completion for this shell, only for %s", strings.Join(slices.Sorted(maps.Keys(scripts)), ", "))
		}
		fmt.Fprint(c.out, script)
		return nil
	}
}

// completionTimeout bounds a completion, because a person waits for it.
const completionTimeout = 2 * time.Second

// mostCompletions bounds the number of completions.
const mostCompletions = 200

// offers are the completions found so far, a line each: a word, a tab, and a description.
type offers []string

// add adds a completion, if the word needs no quoting in any shell: a name that another program
// chose would run commands when the line is executed.
func (o *offers) add(word, description string) {
	for i, r := range word {
		harmless := unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '/' || r == '.'
		if !harmless && (i == 0 || !strings.ContainsRune("-+:@%=", r)) {
			return
		}
	}
	if word != "" && len(*o) < mostCompletions {
		*o = append(*o, word+"\t"+printable.Text(description))
	}
}

// complete prints what the last of the words may become. After an error of the backend it prints
// what was found before.
func (c *console) complete(words []string) error {
	if len(words) == 0 {
		return nil
	}
	var found offers
	begin, words := words[len(words)-1], words[:len(words)-1]
	if len(words) == 0 {
		for _, name := range slices.Sorted(maps.Keys(commands())) {
			_, does := summary(name)
			found.add(name, does)
		}
	} else if newCommand, known := commands()[words[0]]; known {
		call := c.newCall(words[0])
		newCommand(call)
		if err := call.parse(words[1:]); (err == nil || call.needs != nil) && !call.dashes {
			call.find(begin, &found)
		}
	}
	for _, line := range found {
		if strings.HasPrefix(line, begin) {
			fmt.Fprintln(c.out, line)
		}
	}
	return nil
}

// find finds the words that may stand next: flags, keys that are held, and what names a holder.
func (c *call) find(begin string, found *offers) {
	if c.needs == nil && strings.HasPrefix(begin, "-") {
		c.flags.VisitAll(func(f *flag.Flag) {
			_, does := lookup("dlock "+c.name, "--"+f.Name)
			*found = append(*found, "--"+f.Name+"\t"+does)
		})
		return
	}
	var names func(driver.Holder) string
	switch {
	case c.needs == nil && c.keys && (len(c.args) == 0 || c.name == "status"):
	case c.needs != nil && c.holders[c.needs.Name] != nil && len(c.args) == 1:
		names = c.holders[c.needs.Name]
	default:
		return
	}
	_ = c.operate(func(ctx context.Context, client *dlock.Client) error {
		ctx, cancel := context.WithTimeout(ctx, completionTimeout)
		defer cancel()
		i, err := inspector(client)
		if err != nil {
			return err
		}
		if names == nil {
			return i.List(ctx, begin, func(s *driver.State) bool {
				found.add(s.Key, holders(s.Holders...))
				return len(*found) < mostCompletions
			})
		}
		s, err := i.Lookup(ctx, c.args[0])
		if err != nil {
			return err
		}
		for _, h := range s.Holders {
			found.add(names(h), holders(h))
		}
		return nil
	})
}
