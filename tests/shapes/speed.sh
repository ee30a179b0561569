#!/bin/sh
# The speed of every family on this machine, each figure beside the bound that the same run measured: one line of a table per shape. The shapes
# are those that the families' published models have, of fewer layers (and experts) and a smaller vocabulary; weights are drawn at random.
#   tests/shapes/speed.sh [CARREL [THREADS]]
set -eu
cd "$(dirname "$0")/../.."
carrel=${1:-build/release/carrel} threads=${2:-0}
figure() { # WHAT SHAPE: rate, share of its bound
  "$carrel" bench "$1" --shape "$2" --weights q8_0 --threads "$threads" --tokens "$3" --json >build/shape.json || [ -s build/shape.json ]
  python3 -c 'import json; f = json.load(open("build/shape.json")); print("%.1f (%.2f)" % (f["tokens_per_s"], f["share_of_bound"]))'
}
echo '| shape | decode, tokens/s (share of read bandwidth) | prefill of 256, tokens/s (share of the peak) |'
echo '|---|---|---|'
for shape in tests/shapes/*.json; do
  name=$(basename "$shape" .json)
  echo "| $name | $(figure decode "$shape" 24) | $(figure prefill "$shape" 256) |"
done
