#!/bin/sh
# API tests with real clients. The clients come from the package index into build/venv; without it the test is skipped, with the reason.
set -eu
cd "$(dirname "$0")/../.."
venv=build/venv
if [ ! -f $venv/.ready ]; then
  python3 -m venv $venv && $venv/bin/pip install -q 'openai==1.*' httpx && touch $venv/.ready ||
    { echo "skipped: the Python clients cannot be installed"; [ -z "${CI:-}" ]; exit; }
fi
for suite in test_api test_admin; do
  PYTHONPATH=tests/api $venv/bin/python -B -W ignore::ResourceWarning tests/api/$suite.py
done
