package cli

import (
	_ "embed" // the manual is the package's documentation
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

//go:embed doc.go
var manual string

// section returns the part of the manual under a heading; empty: there is none.
func section(title string) string {
	_, rest, found := strings.Cut(manual, "\n// # "+title+"\n//\n")
	if !found {
		return ""
	}
	text, _, _ := strings.Cut(rest, "\n// # ")
	text, _, _ = strings.Cut(text, "\npackage ")
	return strings.NewReplacer("\n// ", "\n", "\n//\t", "\n    ", "\n//", "\n").Replace("\n" + text)
}

// describe gives each flag of a command the manual's words for it, for the completions.
func describe(cmd *cobra.Command) {
	var f *pflag.Flag // of the line before, if its words are on this one
	for line := range strings.Lines(section(cmd.CommandPath())) {
		line = strings.TrimSpace(line)
		flag, usage, _ := strings.Cut(line, "  ")
		_, name, isFlag := strings.Cut(flag, "--")
		switch name, _, _ = strings.Cut(name, " "); {
		case f != nil && f.Usage == "":
			f.Usage = line
		case isFlag && strings.HasPrefix(line, "-"):
			if f = cmd.Flags().Lookup(name); f != nil {
				f.Usage = strings.TrimSpace(usage)
			}
		}
	}
}

// writeHelp prints the manual's section of a command.
func writeHelp(cmd *cobra.Command, _ []string) {
	text := section(cmd.CommandPath())
	if text == "" { // the completion has cobra's own words
		text = "\n" + cmd.Long + "\n"
	}
	fmt.Fprintf(cmd.OutOrStdout(), "Usage: %s\n%s", cmd.UseLine(), text)
}

// help is "dlock help [COMMAND|TOPIC]". An unknown one is an error.
func help(cmd *cobra.Command, args []string) error {
	if text := section(strings.Join(args, " ")); text != "" && args[0] != "dlock" {
		_, err := fmt.Fprint(cmd.OutOrStdout(), strings.TrimPrefix(text, "\n"))
		return err
	}
	found, rest, err := cmd.Root().Find(args)
	if err != nil || len(rest) > 0 {
		return unknownCommand(found, rest)
	}
	return found.Help()
}

// unknownCommand refuses an argument that is no command. The error repeats the argument only if
// it is nearly the name of a command, because it may be a misplaced password.
func unknownCommand(parent *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if near := parent.SuggestionsFor(args[0]); len(near) > 0 {
		return failf(exitUsage, "there is no command %s: did you mean %s?", args[0], strings.Join(near, " or "))
	}
	if parent.ArgsLenAtDash() >= 0 {
		return failf(exitUsage, "there is no such command: did you mean dlock run KEY -- COMMAND [ARG...]?")
	}
	return failf(exitUsage, "there is no such command: dlock --help lists them")
}

// nearFlag returns the flags of cmd whose names resemble a mistyped one.
func nearFlag(cmd *cobra.Command, name string) string {
	flags := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	near := flags.SuggestionsFor(name)
	if len(near) == 0 {
		return ""
	}
	return "--" + strings.Join(near, " or --")
}
