# Stages of tests: what ci/test.sh and ci/soak.sh have in common. Sourced, in the repository's root.
#
# A stage is a function `stage_NAME` with a line "NAME  what it is" in the array `stages`. It runs in a process of its own.

rondel_bench() {
    target/release/rondel bench "$@"
}

on_hosts() { # hosts, family, rate, then the bench's arguments
    local hosts=$1 family=$2 rate=$3
    shift 3
    # These hosts share their CPUs and do not know it: the ranks must neither choose one nor insist on it.
    RONDEL_SPIN=20 ci/netns.sh --hosts "$hosts" --family "$family" ${rate:+--rate "$rate"} -- \
        target/release/rondel bench "$@" --bind none
}

# Runs a bench, shows what it prints, and looks for its verdict over all elements.
checked_bench() {
    local output
    echo "+ $*"
    output=$("$@" 2>&1) || { echo "$output"; echo "the bench ended with an error"; return 1; }
    echo "$output"
    if ! grep -q '^# Out of bounds values : 0 OK$' <<<"$output"; then
        echo "the bench did not say that all is well"
        return 1
    fi
}

# Ends the stage as skipped.
skip() {
    echo "$1" >"$REASON"
    exit 77
}

required() { # stage
    [[ ",${REQUIRE-}," = *",$1,"* ]]
}

known() { # stage
    declare -F "stage_$1" >/dev/null
}

run_all() {
    local rows="" stage code result why start seconds passed=0 failed=0 skipped=0
    reason=$(mktemp) child=""
    trap 'rm -f "$reason"' EXIT
    trap '[[ -z $child ]] || kill "$child" || true; exit 130' INT TERM HUP
    for stage in "$@"; do
        printf '\n==> %s\n' "$stage"
        start=$SECONDS code=0
        : >"$reason"
        # A process of its own, so that it stops at the first command that fails, and can be stopped as a whole.
        REASON=$reason timeout --kill-after=10 "${STAGE_SECONDS:-1500}" "ci/$(basename "$0")" --one "$stage" </dev/null &
        child=$!
        wait "$child" || code=$?
        seconds=$((SECONDS - start)) why=$(<"$reason")
        case $code in
            0) result=passed passed=$((passed + 1)) ;;
            77)
                result=skipped
                if required "$stage"; then
                    result=FAILED failed=$((failed + 1)) why="required, but skipped: $why"
                else
                    skipped=$((skipped + 1))
                fi
                ;;
            124) result=FAILED failed=$((failed + 1)) why="stopped after $seconds s" ;;
            *) result=FAILED failed=$((failed + 1)) ;;
        esac
        printf '==> %s: %s after %d s%s\n' "$stage" "$result" "$seconds" "${why:+: $why}"
        rows+=$(printf '%-10s %-8s %7d  %s' "$stage" "$result" "$seconds" "$why")$'\n'
    done
    printf '\n%-10s %-8s %7s\n%s' stage result seconds "$rows"
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [[ $failed -eq 0 ]]
}

# Takes the command line of a script that has defined `stages` and a function for each of them.
run_stages() {
    local names=() stage
    mapfile -t names < <(printf '%s\n' "${stages[@]%% *}")
    case ${1-} in
        --list) printf '%s\n' "${stages[@]}"; return ;;
        --one) "stage_$2"; return ;;
        "") set -- "${names[@]}" ;;
    esac
    for stage in "$@" ${REQUIRE:+${REQUIRE//,/ }}; do
        known "$stage" || { echo "$0: there is no stage '$stage': ${names[*]}" >&2; exit 2; }
    done
    run_all "$@"
}
