#!/usr/bin/env bash
# Looks at what no tool of Rust's looks at. Prints each finding as file:line: what, and fails if there was any.
set -euo pipefail
cd "$(dirname "$0")/.."

findings=0

# Prints what grep finds, with what is wrong about it.
forbid() { # what is wrong, then grep's arguments
    local what=$1 found
    shift
    # This script names what it forbids.
    found=$(git grep -nIE "$@" ':!ci/tidy.sh' ':!*Cargo.lock' || true)
    [[ -n $found ]] || return 0
    report "$what" "$found"
}

report() { # what is wrong, lines
    sed "s|^|$1: |" <<<"$2"
    findings=$((findings + $(wc -l <<<"$2")))
}

forbid "unfinished" '\b(todo|unimplemented)!|\b(FIXME|XXX)\b' -- '*.rs' '*.sh' '*.toml'
forbid "a test that never runs" '^\s*#\[ignore' -- '*.rs'
forbid "a path of one machine" '(^|[^[:alnum:]_.])/(home|root|Users|mnt)/' -- .
forbid "a file outside of the repository" '(path *= *"|include_(str|bytes)!\("|\]\()(/|(\.\./){4})' -- '*.rs' '*.toml' '*.md'
forbid "blanks at the end of a line" '[[:blank:]]+$' -- '*.rs' '*.sh' '*.toml' '*.md'
forbid "more than 125 characters" '^.{126,}$' -- '*.sh'

found=$(git ls-files | grep -iE '(^|/)(utils?|helpers?|managers?|common)(\.[a-z]+)?$' || true)
[[ -z $found ]] || report "a name that says nothing" "$found"

found=$(git ls-files -s | awk '$1 == 125000 { print $4 }')
[[ -z $found ]] || report "a symbolic link" "$found"

# Links of Markdown files to files lead somewhere.
while IFS= read -r page; do
    while IFS= read -r link; do
        [[ -e $(dirname "$page")/$link ]] || report "a link that leads nowhere" "$page: $link"
    done < <(grep -oE '\]\([^)#]+' "$page" | sed 's/^](//' | grep -vE '^[a-z]+:' || true)
done < <(git ls-files '*.md')

while IFS= read -r script; do
    bash -n "$script" || report "a syntax error" "$script"
    [[ -x $script || $(head -c 2 "$script") != "#!" ]] || report "not executable" "$script"
done < <(git ls-files '*.sh' .ci/run)
if command -v shellcheck >/dev/null; then
    mapfile -t scripts < <(git ls-files '*.sh' .ci/run)
    shellcheck "${scripts[@]}" || findings=$((findings + 1))
else
    echo "tidy: shellcheck is not installed, the scripts were only parsed"
fi

echo "tidy: $findings findings"
[[ $findings -eq 0 ]]
