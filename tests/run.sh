#!/bin/sh
# Runs the tests of one built preset and ends with one line: N passed, N failed.
#   CARREL_SMALL=1  smaller counts (sanitizers)
#   CARREL_LONG=1   full counts, and every fuzzer of build/fuzz for CARREL_FUZZ_SECONDS (60)
set -u
preset=$1
export CARREL_SHARED=${CARREL_SHARED:-$(cd .. && pwd)/shared}
export CARREL_BIN=$(pwd)/build/$preset/carrel
passed=0 failed=0
one() { # NAME COMMAND...
  name=$1; shift
  start=$(date +%s)
  if "$@" >build/$preset/$name.log 2>&1; then passed=$((passed + 1)); verdict=ok; else failed=$((failed + 1)); verdict=FAILED; fi
  printf '%-6s %-16s %4s s   %s\n' "$verdict" "$name" $(($(date +%s) - start)) "$(grep -hE '^\[  PASSED|^\[==========\] .* ran|^Ran |^Done ' build/$preset/$name.log | tail -n 1)"
  grep -hE '^skipped:' build/$preset/$name.log | sort -u | head -n 12
  [ $verdict = ok ] || tail -n 80 build/$preset/$name.log
}
# asan: everything but the downloads. tsan: whatever has threads. A server that a sanitizer stops fails its test (tests/api/harness.py).
case $preset in
  tsan) units="base kernels storage state schedule app whole" scripts="api" ;;
  asan) units="base kernels storage model text state schedule app whole" scripts="api" ;;
  *) units="base kernels storage model text state schedule app whole" scripts="$(for s in tests/*/run.sh; do basename "$(dirname "$s")"; done)" ;;
esac
for t in $units; do
  one $t build/$preset/${t}_test --gtest_brief=1
done
for s in $scripts; do
  [ -f tests/$s/run.sh ] && one $s sh tests/$s/run.sh "$preset"
done
# What a fuzzer finds on the way lies in build/fuzz/corpus and is its start the next time. What breaks a parser is in build/fuzz/broken (its path
# ends the log) and belongs into testdata, once mended.
fuzz() { # PROGRAM CORPUS
  found=build/fuzz/corpus/$1 broken=build/fuzz/broken/$1
  mkdir -p "$found" "$broken"
  one "$1" build/fuzz/"$1" -max_total_time="${CARREL_FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$broken/" "$found" "$2"
}
if [ -n "${CARREL_LONG:-}" ] && [ ! -f build/fuzz/fuzzers.txt ]; then
  echo "skipped: the fuzzers are not built; ./dev test --long builds them"
elif [ -n "${CARREL_LONG:-}" ]; then
  while read -r program corpus; do
    fuzz "$program" "$corpus" </dev/null
  done <build/fuzz/fuzzers.txt
fi
printf '%s passed, %s failed\n' $passed $failed
[ $failed = 0 ]
