# The checks of the code that need no server: a part of all.bash.
golangci=github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.2
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.6.0

# format fails where gofmt does: it is not there, or a file is no Go.
format() {
	local found
	found=$("$(go env GOROOT)/bin/gofmt" -l .) && [ -z "$found" ] && return
	say "$found"
	return 1
}

vet() {
	local goos
	in_modules go vet ./... || return
	for goos in linux darwin windows; do
		[ "$goos" = "$(go env GOHOSTOS)" ] || GOOS=$goos CGO_ENABLED=0 go vet ./... || { say "(for $goos)"; return 1; }
	done
}

# workspace prints a go.work with all modules, in which they get the newest version of each dependency
# that one of them asks for.
workspace() {
	local module version
	version=$(sed -n 's,^.*/redlock v,v,p' drivers/everything/go.mod)
	go env GOVERSION | sed 's/^go/go /'
	for module in $(modules); do
		say "use $PWD${module#.}"
		[ "$module" = . ] || say "replace $(sed -n 's/^module //p' "$module/go.mod") $version => $PWD${module#.}"
	done
}

# lint looks at all modules at once: what they share is loaded once. It has a cache for each folder:
# what it found in another checkout has other paths.
lint() {
	workspace >"$scratch/go.work"
	GOWORK=$scratch/go.work GOLANGCI_LINT_CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/redlock-lint/$(pwd | cksum | tr -d ' ')" \
		go run "$golangci" run $(modules | sed 's,$,/...,')
}

# vulnerabilities fails for those of dependencies. Those of Go itself need a newer Go,
# and without a network nobody can look; both fail in GitHub's CI alone.
vulnerabilities() {
	[ ! -e "$scratch/blind" ] || return 0
	go run "$govulncheck" ./... >"$scratch/out" 2>&1 && return
	cat "$scratch/out"
	grep -q '^  Module: ' "$scratch/out" && return 1
	grep -q '^  Standard library' "$scratch/out" || { touch "$scratch/blind"; say "COULD NOT LOOK for vulnerabilities: is their database out of reach?"; }
	[ -z "${GITHUB_ACTIONS:-}" ]
}
