#!/bin/sh
# Runs the tests of one built preset and ends with one line: N passed, N failed.
#   CARREL_SMALL=1  smaller counts (sanitizers)
#   CARREL_LONG=1   full counts, and every fuzzer of build/fuzz for CARREL_FUZZ_SECONDS (60)
set -u
preset=$1
export CARREL_SHARED=${CARREL_SHARED:-$(cd .. && pwd)/shared}
export CARREL_BIN=$(pwd)/build/$preset/carrel
passed=0 failed=0
rm -f build/$preset/*.status
# Runs one test; what it says and how it ended lies in build/PRESET/NAME.*.
run() { # NAME COMMAND...
  name=$1; shift
  start=$(date +%s)
  "$@" >build/$preset/$name.log 2>&1
  echo "$? $(($(date +%s) - start))" >build/$preset/$name.status
}
tell() { # NAME
  code=lost seconds=0
  read -r code seconds <build/$preset/$1.status
  if [ "$code" = 0 ]; then passed=$((passed + 1)); verdict=ok; else failed=$((failed + 1)); verdict=FAILED; fi
  printf '%-6s %-16s %4s s   %s\n' "$verdict" "$1" "$seconds" "$(grep -hE '^\[  PASSED|^\[==========\] .* ran|^Ran |^Done ' build/$preset/$1.log | tail -n 1)"
  grep -hE '^skipped:' build/$preset/$1.log | sort -u | head -n 12
  [ $verdict = ok ] || tail -n 80 build/$preset/$1.log
}
one() { run "$@"; tell "$1"; }
unit() { # NAME: a program of tests, or `door`, those of app_test that hold the listener to a clock
  program=$1 filter='*'
  case $preset-$1 in
    tsan-kernels) filter='Thread*' ;;  # the ops run on the team in whole_test, with as many threads
    *-app) filter='-Listener.*:Connections.*' ;;
    *-door) program=app filter='Listener.*:Connections.*' ;;
  esac
  run "$1" build/$preset/"$program"_test --gtest_brief=1 --gtest_filter="$filter"
}
script() { run "$1" sh tests/"$1"/run.sh "$preset"; }
# asan: everything but the downloads. tsan: whatever has threads. A server that a sanitizer stops fails its test (tests/api/harness.py).
# queue: what looks at no clock but for limits of many times its length; the short ones last.
case $preset in
  tsan) queue="whole state base kernels storage app tiers" ;;
  asan) queue="whole model state kernels text storage app tiers base" ;;
  *) queue="real whole model kernels tiers text state cli storage app base" ;;
esac
# Two at a time, each taking the next that nobody has taken: a folder can be made once.
taken=build/$preset/taken
rm -rf $taken && mkdir $taken
take() {
  for t in $queue; do
    mkdir $taken/"$t" 2>/dev/null || continue
    if [ -f tests/"$t"/run.sh ]; then script "$t"; else unit "$t"; fi
  done
}
take &
take
wait
for t in $queue; do tell "$t"; done
# Then, with the machine to themselves, those with deadlines of a second. The door waits nearly all of its time, so that it disturbs no server;
# under a sanitizer it would.
unit schedule
if [ "$preset" = tsan ] || [ "$preset" = asan ]; then unit door; else unit door & fi
script api
wait
for t in schedule door api; do tell "$t"; done
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
