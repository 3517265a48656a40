#!/usr/bin/env bash
# Installs what the tests need beyond Rust, with apt, if this is root on Debian or a relative; else says what is missing.
# Nothing is installed twice. Rust itself is expected to be there, and cargo fetches the crates of both lock files.
set -euo pipefail
cd "$(dirname "$0")/.."

# Program, package, what for.
needs=(
    "cc gcc linking"
    "c++ g++ fuzzing"
    "ip iproute2 hosts as network namespaces"
    "tc iproute2 hosts as network namespaces"
)

missing=()
for need in "${needs[@]}"; do
    read -r program package purpose <<<"$need"
    if ! command -v "$program" >/dev/null; then
        echo "setup: $program is missing (package $package; for $purpose)"
        [[ " ${missing[*]-} " = *" $package "* ]] || missing+=("$package")
    fi
done

if [[ ${#missing[@]} -eq 0 ]]; then
    echo "setup: all programs are there"
elif [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
    echo "setup: installing ${missing[*]} with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    if ! apt-get update -qq || ! apt-get install -qq --yes --no-install-recommends "${missing[@]}"; then
        echo "setup: apt-get has failed: the stages that need ${missing[*]} are skipped"
    fi
else
    echo "setup: not root, or no apt-get: install ${missing[*]} yourself, or the stages that need them are skipped"
fi

cargo fetch --quiet --locked
cargo fetch --quiet --locked --manifest-path ci/fuzz/Cargo.toml
echo "setup: the crates are there"
