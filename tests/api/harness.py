"""Starts the real binary on a throw-away data folder and talks to it over TLS."""
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import http.client

BIN = os.environ["CARREL_BIN"]
SANITIZED = re.search(r"/(asan|tsan)/", BIN) is not None
PATIENCE = 5 if SANITIZED else 1  # seconds where a second is plenty


class Server:
    def __init__(self, *args, env=None, data=None):
        self.own_data = data is None
        self.data = data or tempfile.mkdtemp(prefix="carrel-test-")
        self.log = open(os.path.join(self.data, "server.log"), "ab")
        command = [BIN, "serve", "--data", self.data, "--listen", "127.0.0.1:0", *args]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, env={**os.environ, **(env or {})}, text=True)
        self.key = self.trust = None
        for line in self.process.stdout:
            found = re.search(r"(crl_\S+)", line)
            if found and not self.key:
                self.key = found.group(1)
            ready = re.match(r"ready (\w+)://127\.0\.0\.1:(\d+)(?: ca=(\S+))?", line)
            if ready:
                self.port = int(ready.group(2))
                self.ca = ready.group(3)
                self.url = f"https://127.0.0.1:{self.port}"
                return
        self.process.wait()
        raise RuntimeError("server did not start: " + open(self.log.name).read()[-2000:])

    def context(self):
        self.trust = self.trust or ssl.create_default_context(cafile=self.ca)  # to read the file again costs more than a request
        return self.trust

    def connection(self, timeout=60):
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context(), timeout=timeout)

    def request(self, method, path, body=None, key="own", headers=None, timeout=60):
        c = self.connection(timeout)
        h = dict(headers or {})
        key = self.key if key == "own" else key
        if key:
            h["Authorization"] = "Bearer " + key
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
            h.setdefault("Content-Type", "application/json")
        c.request(method, path, body=body, headers=h)
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, dict((k.lower(), v) for k, v in r.getheaders()), data

    def call(self, path, body, key="own", **kw):
        status, headers, data = self.request("POST", path, body, key, **kw)
        return status, json.loads(data)

    def metric(self, name, **labels):
        status, _, data = self.request("GET", "/metrics", key=None)
        assert status == 200, data
        total = 0.0
        for line in data.decode().splitlines():
            m = re.match(r"(\w+)(?:\{(.*)\})? (\S+)$", line)
            if m and m.group(1) == name and all(f'{k}="{v}"' in (m.group(2) or "") for k, v in labels.items()):
                total += float(m.group(3))
        return total

    def cli(self, *args):
        out = subprocess.run([BIN, *args, "--data", self.data, "--json"], capture_output=True, text=True)
        if out.returncode != 0:
            raise RuntimeError(out.stderr)
        return json.loads(out.stdout)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30 * PATIENCE)
        self.log.close()
        with open(self.log.name) as f:
            log = f.read()
        if self.own_data:
            shutil.rmtree(self.data, ignore_errors=True)
        if self.process.returncode != 0:
            raise AssertionError(f"the server ended with status {self.process.returncode}:\n" + log[-6000:])

    def rss_bytes(self):
        with open(f"/proc/{self.process.pid}/statm") as f:
            return int(f.read().split()[1]) * 4096


def run_serve(*args, data):
    """Runs `serve` that is expected to refuse; returns (status, stderr)."""
    out = subprocess.run([BIN, "serve", "--data", data, "--listen", "127.0.0.1:0", *args], capture_output=True, text=True, timeout=60)
    if "Sanitizer" in out.stderr:
        raise AssertionError(out.stderr)
    return out.returncode, out.stderr
