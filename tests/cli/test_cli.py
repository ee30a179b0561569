"""Every command through its own door: one JSON document with --json, exit statuses 0, 1, 2, and no quarrel with a server on the same folder."""
import json
import os
import pty
import shutil
import signal
import subprocess
import tempfile
import unittest

from harness import BIN, Server

GOLDEN = "tests/golden/models/llama"
DEMO = "app/assets/demo-model"


def carrel(*args, data=None, env=None):
    command = [BIN, *args] + (["--data", data] if data else [])
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **(env or {})})


class Cli(unittest.TestCase):
    def setUp(self):
        self.data = tempfile.mkdtemp(prefix="carrel-cli-")
        self.addCleanup(shutil.rmtree, self.data, ignore_errors=True)

    def json(self, *args, status=0, data=True):
        out = carrel(*args, "--json", data=self.data if data else None)
        self.assertEqual(out.returncode, status, (args, out.stderr))
        return json.loads(out.stdout)  # one document: anything behind it is an error of json.loads

    def everything(self):
        """Each command once, in an order in which it can work."""
        self.json("tenant", "create", "a")
        self.assertIn("a", [t["name"] for t in self.json("tenant", "list")])
        key = self.json("key", "create", "--tenant", "a")
        self.assertRegex(key["key"], r"^crl_\w+")
        self.assertNotIn(key["key"], json.dumps(self.json("key", "list")))
        second = self.json("key", "rotate", key["id"])
        self.assertNotEqual(second["key"], key["key"])
        self.json("key", "revoke", second["id"])
        self.json("model", "import", DEMO, "--name", "l")
        self.assertEqual([m["name"] for m in self.json("model", "list")], ["l"])
        self.json("model", "verify", "l")
        self.json("run", "hi", "--model", "l", "--max-tokens", "2", "--raw")
        self.json("model", "remove", "l")
        self.json("tenant", "remove", "a")
        self.json("golden", GOLDEN, data=False)
        self.json("config", "check", "tests/config/seed_001.yaml")
        self.json("config", "schema")
        self.json("routes")
        self.json("version")

    def test_each_prints_one_document(self):
        self.everything()

    def test_each_works_while_a_server_runs_on_the_folder(self):
        server = Server(data=self.data)
        try:
            self.everything()
            key = self.json("key", "create", "--tenant", "default")
            self.assertEqual(server.request("GET", "/v1/models", key=key["key"])[0], 200)  # known at once, without a restart
            self.json("key", "revoke", key["id"])
            self.assertEqual(server.request("GET", "/v1/models", key=key["key"])[0], 401)
        finally:
            server.stop()

    def test_failures_are_one_document_too_and_name_the_object(self):
        for args, status, word in ((("key", "revoke", "nope"), 1, "nope"), (("key", "create", "--tenant", "nobody"), 1, "nobody"), (("model", "verify", "none"), 1, "none"),
                                   (("model", "import", "/no/such/file"), 1, "/no/such/file"), (("model", "import", "README.md"), 1, "README.md"), (("tenant", "remove", "nope"), 1, "nope"),
                                   (("tenant", "create", "../x"), 2, "../x"), (("config", "check", "/no/such.yaml"), 1, "/no/such.yaml"), (("run", "x", "--model", "none"), 1, "none")):
            out = carrel(*args, "--json", data=self.data)
            error = json.loads(out.stdout)["error"]
            self.assertIn(word, error["message"], args)
            self.assertIn(error["message"], out.stderr)
            self.assertEqual(out.returncode, status, (args, out.stderr))

    def test_wrong_usage_is_status_2(self):
        for args in ((), ("frobnicate",), ("key",), ("key", "create", "--no-such-option"), ("serve", "--listen", "nowhere"), ("bench", "everything"), ("model", "import")):
            out = carrel(*args)
            self.assertEqual((out.returncode, out.stdout), (2, ""), args)
            self.assertNotEqual(out.stderr, "", args)

    def test_help_and_version(self):
        self.assertIn("serve", carrel("--help").stdout)
        self.assertRegex(carrel("--version").stdout, r"^carrel \d+\.\d+\.\d+")

    def test_serve_says_that_it_is_ready_as_json(self):
        p = subprocess.Popen([BIN, "serve", "--data", self.data, "--listen", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        ready = json.loads(p.stdout.readline())
        p.send_signal(signal.SIGTERM)
        rest = p.stdout.read()
        self.assertEqual((p.wait(60), rest), (0, ""))
        p.stdout.close()
        self.assertRegex(ready["ready"], r"^https://127\.0\.0\.1:\d+$")
        self.assertTrue(os.path.exists(ready["ca"]) and ready["key"].startswith("crl_"))

    def test_progress_is_for_terminals(self):
        out = carrel("model", "import", GOLDEN, "--name", "quiet", data=self.data)
        self.assertEqual(out.returncode, 0, out.stderr)
        self.assertNotIn("\r", out.stdout + out.stderr)
        terminal, its_end = pty.openpty()
        p = subprocess.Popen([BIN, "model", "verify", "quiet", "--data", self.data], stdout=its_end, stderr=its_end)
        os.close(its_end)
        shown = b""
        try:
            while chunk := os.read(terminal, 4096):
                shown += chunk
        except OSError:
            pass  # the other end is closed
        os.close(terminal)
        self.assertEqual(p.wait(60), 0)
        self.assertRegex(shown.decode(), r"100 ?%")


if __name__ == "__main__":
    unittest.main()
