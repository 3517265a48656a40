#!/usr/bin/env bash
# The long tests, for hours: more seeds, more kills, more cases, more inputs.
#
#   ci/soak.sh [STAGE...]       these stages (default: all)
#   ci/soak.sh --list           the stages
#
#   SOAK_SEEDS=1000             multiplies the seeds of the fault sweep and chooses the long form of every test that has one
#   SOAK_CASES=20000            random cases for each property
#   SOAK_REPEATS=50             how often tests that depend on timing are run
#   SOAK_ROUNDS=20              rounds of benches with odd numbers of ranks
#   FUZZ_SECONDS=600            seconds for each fuzz target
#   STAGE_SECONDS=36000         a stage that takes longer has failed
#   REQUIRE=hosts,...           skipping one of these stages is a failure
set -euo pipefail
cd "$(dirname "$0")/.."
export STAGE_SECONDS=${STAGE_SECONDS:-36000}

stages=(
    "seeds       fault sweep, kills and whatever else has a long form (RONDEL_SOAK)"
    "properties  random cases of every property"
    "repeats     transports' conformance, and real processes, again and again"
    "ranks       all collectives, types and operators with odd numbers of ranks, every element checked"
    "hosts       the same between network namespaces, with slow links"
    "fuzz        parsers of foreign bytes, with AddressSanitizer"
)

stage_seeds() {
    RONDEL_SOAK=${SOAK_SEEDS:-1000} cargo test --workspace --locked --no-fail-fast --tests
}

stage_properties() {
    PROPTEST_CASES=${SOAK_CASES:-20000} cargo test --workspace --locked --no-fail-fast --lib --tests
}

stage_repeats() {
    local round
    for ((round = 1; round <= ${SOAK_REPEATS:-50}; round++)); do
        echo "round $round"
        cargo test --quiet --locked -p rondel-mem -p rondel-shm -p rondel-tcp --tests
        cargo test --quiet --locked -p rondel --lib
    done
}

stage_ranks() {
    local round ranks collective
    cargo build --release --locked --bins
    for ((round = 1; round <= ${SOAK_ROUNDS:-20}; round++)); do
        for ranks in 3 5 7 9 13; do
            for collective in all_reduce reduce_scatter reduce; do
                checked_bench rondel_bench "$collective" --ranks "$ranks" -b 8 -e 2M -f 7 -n 5 -c 3 -d all -o all -r all
            done
            for collective in all_gather all_to_all broadcast gather scatter; do
                checked_bench rondel_bench "$collective" --ranks "$ranks" -b 8 -e 2M -f 7 -n 5 -c 3 -r all
            done
        done
    done
}

stage_hosts() {
    local why hosts collective
    why=$(ci/netns.sh --probe) || skip "$why"
    cargo build --release --locked --bins
    for hosts in 2 3 5 8; do
        for collective in all_reduce all_gather all_to_all broadcast; do
            checked_bench on_hosts "$hosts" 4 1gbit "$collective" -b 8 -e 16M -f 16 -n 5
            checked_bench on_hosts "$hosts" 6 "" "$collective" -b 8 -e 1M -f 16 -n 20
        done
    done
}

stage_fuzz() {
    command -v c++ >/dev/null || skip "libFuzzer is C++, and there is no compiler for it (package g++)"
    FUZZ_ASAN=1 ci/fuzz.sh "${FUZZ_SECONDS:-600}"
}

source ci/stages.sh
run_stages "$@"
