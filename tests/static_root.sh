#!/bin/sh
# The static binary in an empty root folder: no library, no /etc, no /proc; it must serve over HTTPS and its commands must work.
# Needs the right to chroot (root, or user namespaces); without it the test is skipped, with the reason. Ends with: N passed, N failed.
set -u
cd "$(dirname "$0")/.."
binary=build/static/carrel
root=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$root"' EXIT
inside() { if [ "$(id -u)" = 0 ]; then chroot "$root" "$@"; else unshare --map-root-user chroot "$root" "$@"; fi; }
fail() { echo "FAILED: $*"; cat "$root/out" "$root/err" 2>/dev/null; echo "0 passed, 1 failed"; exit 1; }

ldd "$binary" 2>&1 | grep -q 'not a dynamic executable' || fail "$binary needs shared libraries: $(ldd "$binary")"
cp "$binary" "$root/carrel" && mkdir "$root/data"
inside /carrel --version >/dev/null 2>"$root/err" || {
  [ "$(id -u)" != 0 ] && { echo "skipped: no right to change the root folder"; echo "0 passed, 0 failed"; exit 0; }
  fail "the binary does not start in an empty root"
}
# The background process itself, so that it is what is stopped at the end.
serve() { if [ "$(id -u)" = 0 ]; then exec chroot "$root" "$@"; else exec unshare --map-root-user chroot "$root" "$@"; fi; }
serve /carrel serve --data /data --listen 127.0.0.1:0 >"$root/out" 2>"$root/err" &
server=$!
for _ in $(seq 100); do grep -q '^ready ' "$root/out" && break; sleep 0.1; done
url=$(sed -n 's/^ready \(https:[^ ]*\) .*/\1/p' "$root/out")
key=$(inside /carrel key create --data /data --tenant default --json | sed -n 's/.*"key": *"\([^"]*\)".*/\1/p')
[ -n "$url" ] && [ -n "$key" ] || fail "no ready line or no key"
answer=$(curl -sS --cacert "$root/data/tls/ca.pem" -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
  -d '{"model":"demo","messages":[{"role":"user","content":"hello"}],"max_tokens":4}' "$url/v1/chat/completions")
echo "$answer" | grep -q '"completion_tokens"' || fail "no answer: $answer"
inside /carrel model list --data /data --json >/dev/null || fail "model list"
inside /carrel config schema >/dev/null || fail "config schema"
echo "1 passed, 0 failed"
