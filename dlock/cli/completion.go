package cli

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// scripts ask "dlock __complete WORD..." for what the last word may become, and complete the names
// of files if there is nothing. They evaluate nothing.
var scripts = map[string]string{
	"bash": `_dlock() {
    local IFS=$'\n'
    COMPREPLY=($(dlock __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1))
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

// complete prints what the last of the words may become: a command, or a flag. Keys are no words to
// offer, because another program chose them, and a shell would run what is in them.
func (c *console) complete(words []string) error {
	if len(words) == 0 {
		return nil
	}
	begin, words := words[len(words)-1], words[:len(words)-1]
	offer := func(word, does string) {
		if strings.HasPrefix(word, begin) {
			fmt.Fprintf(c.out, "%s\t%s\n", word, does)
		}
	}
	if len(words) == 0 {
		for _, name := range slices.Sorted(maps.Keys(commands())) {
			_, does := summary(name)
			offer(name, does)
		}
		return nil
	}
	newCommand, known := commands()[words[0]]
	if !known || !strings.HasPrefix(begin, "-") || slices.Contains(words, "--") {
		return nil
	}
	call := c.newCall(words[0])
	newCommand(call)
	call.flags.VisitAll(func(f *flag.Flag) {
		_, does := lookup("dlock "+call.name, "--"+f.Name)
		offer("--"+f.Name, does)
	})
	return nil
}
