#!/usr/bin/env bash
# All tests, in stages. What cannot run here is skipped and says why.
#
#   ci/test.sh [STAGE...]       these stages (default: all)
#   ci/test.sh --list           the stages
#
#   REQUIRE=netns,asan,...      skipping one of these stages is a failure
#   FUZZ_SECONDS=15             seconds for each fuzz target
#   STAGE_SECONDS=1500          a stage that takes longer has failed
#
# A failed stage does not keep the later ones from running. The exit status is 1 if any has failed.
set -euo pipefail
cd "$(dirname "$0")/.."

# Name and what it is; the functions are below, in this order.
stages=(
    "setup   programs and crates that the others need"
    "tidy    what no tool of Rust's looks at: scripts, links, paths, names"
    "fmt     formatting"
    "clippy  lints of all targets, warnings are errors"
    "doc     rustdoc without warnings"
    "deny    licences, duplicates and sources of dependencies"
    "test    unit, integration and doc tests of all crates"
    "build   release build, examples and benches"
    "bench   rondel bench between local processes, every element checked"
    "shm     rondel bench over shared memory and, of the same ranks, over sockets alone"
    "loom    the protocols of shared memory in every order that the memory model allows"
    "netns   rondel bench between hosts that are network namespaces"
    "asan    kernels and transports under AddressSanitizer"
    "fuzz    parsers of foreign bytes, for some seconds each"
)

stage_setup() {
    ci/setup.sh
}

stage_tidy() {
    ci/tidy.sh
}

stage_fmt() {
    cargo fmt --version >/dev/null 2>&1 || skip "rustfmt is not installed (rustup component add rustfmt)"
    cargo fmt --all --check
    cargo fmt --manifest-path ci/fuzz/Cargo.toml --check
}

stage_clippy() {
    cargo clippy --version >/dev/null 2>&1 || skip "clippy is not installed (rustup component add clippy)"
    cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
}

stage_doc() {
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --locked
}

stage_deny() {
    if ! command -v cargo-deny >/dev/null; then
        required deny || skip "cargo-deny is not installed; with REQUIRE=deny this stage builds it, which takes minutes"
        cargo install cargo-deny --locked
    fi
    # Advisories are left out: their database is a download of its own.
    cargo deny --offline check bans licenses sources
}

stage_test() {
    if command -v cargo-nextest >/dev/null; then
        cargo nextest run --workspace --all-features --locked --no-fail-fast
        cargo test --workspace --all-features --locked --doc
    else
        cargo test --workspace --all-features --locked --no-fail-fast
    fi
}

stage_build() {
    cargo build --release --locked --bins --examples
    cargo bench --workspace --locked --no-run
}

stage_bench() {
    cargo build --release --locked --bins
    checked_bench rondel_bench all_reduce --ranks 2 -b 8 -e 1M
    checked_bench rondel_bench all_reduce --ranks 4 -b 8 -e 1M -n 20
    local collective
    for collective in all_gather reduce_scatter all_to_all broadcast reduce; do
        checked_bench rondel_bench "$collective" --ranks 3 -b 8 -e 128K -f 16 -n 10
    done
}

stage_shm() {
    cargo build --release --locked --bins
    local answer
    if ! answer=$(rondel_bench barrier --ranks 2 --transport shm -n 1 2>&1); then
        grep -q 'shm: ' <<<"$answer" && skip "$(grep -m 1 -o 'shm: .*' <<<"$answer")"
        echo "$answer"
        return 1
    fi
    local collective transport
    for transport in shm tcp; do
        checked_bench rondel_bench all_reduce --ranks 2 --transport "$transport" -b 8 -e 16M -f 8 -n 5
        for collective in all_gather reduce_scatter all_to_all broadcast reduce; do
            checked_bench rondel_bench "$collective" --ranks 4 --transport "$transport" -b 8 -e 1M -f 32 -n 5
        done
    done
}

stage_loom() {
    RUSTFLAGS="--cfg loom" cargo test --locked --release -p rondel-shm --test loom --target-dir target/loom
}

stage_netns() {
    local why
    why=$(ci/netns.sh --probe) || skip "$why"
    cargo build --release --locked --bins
    checked_bench on_hosts 2 both "" all_reduce -b 8 -e 1M -f 8 -n 5
    checked_bench on_hosts 4 4 "" all_reduce -b 8 -e 1M -f 8 -n 5
    checked_bench on_hosts 2 6 "" all_reduce -b 8 -e 64K -f 16 -n 5
    checked_bench on_hosts 4 6 "" all_gather -b 8 -e 64K -f 16 -n 5
    limited_rate
}

stage_asan() {
    local triple runtime
    triple=$(rustc -vV | sed -n 's/^host: //p')
    runtime=$(find "$(rustc --print target-libdir)" -name 'librustc-*_rt.asan.a' -print -quit)
    [[ -n $runtime ]] || skip "this toolchain has no runtime of AddressSanitizer for $triple"
    # Sanitizers are not stable; the compiler and everything that it does here are.
    RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address cargo test --locked --no-fail-fast --lib --tests \
        --target "$triple" --target-dir target/asan -p rondel-device -p rondel-mem -p rondel-shm -p rondel-tcp \
        -- --skip warm_messages_call_nothing # the sanitizer calls the kernel itself
}

stage_fuzz() {
    command -v c++ >/dev/null || skip "libFuzzer is C++, and there is no compiler for it (package g++)"
    ci/fuzz.sh "${FUZZ_SECONDS:-15}"
}

# How much of a slow link is used. Other loads on this machine cost a part of it, so the best of three runs counts: what is
# built to leave a part of the link unused reaches the bound in none.
limited_rate() {
    local attempt csv all=""
    for attempt in 1 2 3; do
        csv=$(on_hosts 2 4 1gbit all_reduce -b 16M -e 64M -f 4 -n 3 -w 1 --place in --csv - 2>&1) ||
            { echo "$csv"; return 1; }
        echo "$csv"
        all+=$csv$'\n'
        echo "run $attempt of at most 3, the best so far:"
        ! fills_link <<<"$all" || return 0
    done
    return 1
}

# Reads lines of CSV and says for each size which part of 1 Gb/s was used at best. Succeeds if that is 90 % at both sizes.
fills_link() {
    awk -F, '/^peer,/ { for (i = 1; i <= NF; i++) { if ($i == "busbw_GBps") rate = i; if ($i == "bytes") size = i } }
        /^rondel,/ { percent = $rate / 0.125 * 100; if (percent > best[$size]) best[$size] = percent }
        END {
            for (bytes in best) {
                printf "%d MiB between two hosts: %d %% of 1 Gb/s, expected 90 %%\n", bytes / 1048576, best[bytes]
                good += best[bytes] >= 90
            }
            exit good != 2
        }'
}

source ci/stages.sh
run_stages "$@"
