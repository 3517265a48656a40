#!/usr/bin/env bash
# Fuzzes everything that parses foreign bytes, with libFuzzer on the stable compiler.
#
#   ci/fuzz.sh [SECONDS] [TARGET...]     each target for SECONDS (default 10); default: all targets
#
# FUZZ_ASAN=1 adds AddressSanitizer. What was found lies in target/fuzz/artifacts/TARGET, what was learned (and is the
# start of the next run) in target/fuzz/corpus/TARGET.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-10}
if [[ ! $seconds =~ ^[1-9][0-9]*$ ]]; then
    echo "fuzz.sh: '$seconds' is no number of seconds; see the head of the file" >&2
    exit 2
fi
shift || true
targets=("$@")
[[ ${#targets[@]} -gt 0 ]] || mapfile -t targets < <(basename -s .rs -a ci/fuzz/targets/*.rs)

triple=$(rustc -vV | sed -n 's/^host: //p')
# The passes that libFuzzer's coverage and comparison feedback come from. With --target they reach the code under test,
# and not build scripts or procedural macros.
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
output=target/fuzz
if [[ ${FUZZ_ASAN:-0} = 1 ]]; then
    # Sanitizers are not stable; the compiler and everything that it does here are.
    export RUSTC_BOOTSTRAP=1
    flags+=" -Zsanitizer=address"
    output=target/fuzz-asan
fi

RUSTFLAGS=$flags cargo build --release --locked --manifest-path ci/fuzz/Cargo.toml --target-dir "$output" \
    --target "$triple" --bin seeds "${targets[@]/#/--bin=}"

"$output/$triple/release/seeds" "$output/seeds"
failed=()
for target in "${targets[@]}"; do
    corpus=$output/corpus/$target artifacts=$output/artifacts/$target
    mkdir -p "$corpus" "$artifacts"
    # Jobs of the environment must not reach the code under test.
    options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0)
    log=$output/$target.log
    if "$output/$triple/release/$target" "${options[@]}" -artifact_prefix="$artifacts/" "$corpus" "$output/seeds/$target" \
        >"$log" 2>&1; then
        printf 'fuzz %-16s ok, %s inputs\n' "$target" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
    else
        printf 'fuzz %-16s FAILED\n' "$target"
        tail -n 60 "$log"
        failed+=("$target")
    fi
done
if [[ ${#failed[@]} -gt 0 ]]; then
    echo "fuzz.sh: ${failed[*]} failed. To see one again: $output/$triple/release/TARGET $output/artifacts/TARGET/FILE"
    exit 1
fi
