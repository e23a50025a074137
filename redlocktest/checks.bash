# The checks of the code, and what the deep depth has beside the tests: a part of all.bash.
golangci=github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.2
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.6.0
apidiff=golang.org/x/exp/cmd/apidiff@v0.0.0-20261113113407-e3970619a1a4

# run_static runs the checks that look at the code and start no server.
run_static() {
	try "gofmt" format
	try "vet" vet
	try "lint" lint
	try "api" api
}

# run_sample runs what a change has of the deep depth.
run_sample() {
	try "race detector" races
	try "sample of the deep depth" sample 180
}

run_deep() {
	try "without the race detector" slow_with_race
	try "mutants of the scripts" redlocktest/mutate.bash
	try "mutants of Go" redlocktest/mutate.bash --go --for 3600
	try "fuzz" redlocktest/fuzz.bash 1m
}

# format fails where gofmt does: it is not there, or a file is no Go.
format() {
	local found
	found=$("$(go env GOROOT)/bin/gofmt" -l .) && [ -z "$found" ] && return
	say "$found"
	return 1
}

# vet looks at what other systems compile; for this one lint has the same rules. The benchmark, which
# is tested in the deep depth alone, has to build with what its go.mod asks for. Nothing of the other
# systems' code runs, so that it is compiled without optimizations, which takes a third less.
vet() {
	local goos
	(cd benchmark && go list -deps -test ./... >/dev/null) || return
	for goos in linux darwin windows; do
		[ "$goos" = "$(go env GOHOSTOS)" ] || GOOS=$goos CGO_ENABLED=0 go vet -gcflags="all=-N -l" ./... || { say "(for $goos)"; return 1; }
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

# api compares the main module with the last release, by its tag. A name that changed in a way that
# breaks a user's program has to stand under Unreleased in the changelog. Before the first release
# there is nothing to compare.
api() {
	local last module change name unsaid=0
	last=$(git describe --tags --match 'v[0-9]*' --abbrev=0 2>/dev/null) || { say "no release yet, so nothing to compare with"; return 0; }
	module=$(sed -n 's/^module //p' go.mod)
	mkdir -p "$scratch/last" && git archive "$last" | tar -x -C "$scratch/last" || return
	(cd "$scratch/last" && go run "$apidiff" -m -w "$scratch/last.api" "$module") && go run "$apidiff" -m -w "$scratch/now.api" "$module" || return
	go run "$apidiff" -m -incompatible "$scratch/last.api" "$scratch/now.api" >"$scratch/api" 2>&1 || return
	awk '/^## / { on = /Unreleased/ } on' .github/CHANGELOG.md >"$scratch/unreleased"
	while IFS= read -r change; do # such as "- ./dlock.WithMode: removed"
		name=${change%%:*} name=${name##*[./)]}
		grep -qw -- "$name" "$scratch/unreleased" || { say "not in the changelog: $change"; unsaid=1; }
	done < <(grep '^- ' "$scratch/api" | grep -v '/internal/')
	say "compared with $last: $(grep -c '^- ' "$scratch/api") incompatible changes"
	return $unsaid
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

# races tests where goroutines meet, with the race detector.
races() {
	case $lack in *cc*) [ -z "${CI:-}" ]; return ;; esac
	go test -vet=off -race -short -timeout=20m ./dlock ./drivers/internal/redisnode/... ./drivers/redlock ./drivers/postgres/... ./drivers/memory
}

# deep_tests prints the folder and name of each test that asks for the deep depth.
deep_tests() {
	grep -rnE --include='*_test.go' '^func (Test|Fuzz)|server\.(Deep|IsDeep)\(' . | awk -F: '
		/:func (Test|Fuzz)/ { file = $1; name = $3; sub(/^func /, "", name); sub(/\(.*/, "", name); next }
		$1 == file && name ~ /^Test/ && !seen[file, name]++ { sub(/\/[^\/]*$/, "", file); print file, name; file = $1 }'
}

# sample SECONDS runs deep tests for so long, in an order that the commit's hash gives. The last one
# may be cut off, which is no failure.
sample() {
	local commit folder name left status end=$((SECONDS + $1)) bad=0
	commit=$(git rev-parse HEAD) || return
	say "deep tests in the order of commit $commit:"
	while read -r _ folder name; do
		left=$((end - SECONDS))
		[ "$left" -gt 5 ] || break
		say "$folder $name"
		[ "$folder" != ./drivers/consul ] || has_consul || { say "  skipped: consul is built by --deep"; continue; }
		(cd "$folder" && REDLOCK_DEEP=1 go test -vet=off -count=1 -run "^$name\$" -timeout=1h . 2>&1) >"$scratch/sample" &
		stopped_after "$left" $!
		status=$?
		case $status in
		0) ;;
		124) say "  cut off after $left s" ;;
		*) cat "$scratch/sample"; bad=1 ;;
		esac
	done < <(deep_tests | while read -r folder name; do say "$(say "$commit $folder $name" | git hash-object --stdin) $folder $name"; done | sort)
	return $bad
}

# stopped_after SECONDS PID waits for a background job and stops it, with all that it started, after
# so long. Its status is the job's, or 124.
stopped_after() {
	local until=$((SECONDS + $1))
	while kill -0 "$2" 2>/dev/null; do
		if [ "$SECONDS" -ge "$until" ]; then
			kill $(started "$2") "$2" 2>/dev/null
			wait "$2" 2>/dev/null
			return 124
		fi
		sleep 0.2
	done
	wait "$2"
}

# slow_with_race runs once more, without the race detector, what leaves out its slow parts under it.
slow_with_race() { go test -timeout=6h ./drivers/redlock ./redlocktest ./drivers/file; }
