#!/bin/sh
# Lower tiers of real servers: restarts, kills, damage on disk. Nothing here looks at a clock but for limits of half a minute.
set -eu
cd "$(dirname "$0")/../.."
PYTHONPATH=tests/api exec python3 -B -W ignore::ResourceWarning tests/tiers/test_tiers.py
