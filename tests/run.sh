#!/bin/sh
# Runs every test of one built preset and ends with one line: N passed, N failed.
set -u
preset=$1
export CARREL_SHARED=${CARREL_SHARED:-$(cd .. && pwd)/shared}
export CARREL_BIN=$(pwd)/build/$preset/carrel
passed=0 failed=0
one() { # NAME COMMAND...
  name=$1; shift
  start=$(date +%s)
  if "$@" >build/$preset/$name.log 2>&1; then passed=$((passed + 1)); verdict=ok; else failed=$((failed + 1)); verdict=FAILED; fi
  printf '%-6s %-24s %4s s   %s\n' "$verdict" "$name" $(($(date +%s) - start)) "$(grep -hE '^\[  (PASSED|SKIPPED)' build/$preset/$name.log | head -n 1)"
  grep -hE '^(skipped|SKIP):' build/$preset/$name.log | sort -u | head -n 12
  [ $verdict = ok ] || tail -n 60 build/$preset/$name.log
}
for t in build/$preset/*_test; do
  [ -x "$t" ] && one "$(basename "$t")" "$t" --gtest_brief=1
done
for s in tests/*/run.sh; do
  [ -f "$s" ] && one "$(basename "$(dirname "$s")")" sh "$s" "$preset"
done
printf '%s passed, %s failed\n' $passed $failed
[ $failed = 0 ]
