#!/bin/sh
# Every command of the binary, by hand as an administrator would, also while a server runs on the same data folder.
set -eu
cd "$(dirname "$0")/../.."
PYTHONPATH=tests/api exec python3 -B -W ignore::ResourceWarning tests/cli/test_cli.py
