"""Every command through its own door: one JSON document with --json, exit statuses 0, 1, 2, and no quarrel with a server on the same folder."""
import json
import os
import pty
import shutil
import signal
import subprocess
import tempfile
import unittest

from harness import BIN, Server, run_serve

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
        if status is not None:
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
        imported = self.json("model", "import", DEMO, "--name", "l")
        self.assertTrue(imported["servable"])
        listed = self.json("model", "list")
        self.assertEqual([(m["name"], m["embedded"]) for m in listed], [("l", False), ("demo", True)])
        self.assertEqual(imported["created_ms"], listed[0]["created_ms"])
        self.assertGreater(imported["created_ms"], 1_600_000_000_000)
        self.assertTrue(self.json("model", "verify", "l")["ok"])
        every = self.json("model", "verify")
        self.assertEqual((every["ok"], [m["name"] for m in every["models"]]), (True, ["l", "demo"]))
        self.json("run", "hi", "--model", "l", "--max-tokens", "2", "--raw")
        self.assertTrue(self.json("plan", "--model", "l")["fits"])
        self.json("tenant", "remove", "a")
        self.json("golden", GOLDEN, data=False)
        self.json("config", "check", "tests/config/seed_001.yaml", data=False)
        self.json("config", "schema", data=False)
        self.json("routes", data=False)
        self.json("version", data=False)
        self.assertTrue(self.json("drill", "half-block", "--model", "l")["passed"])
        self.assertEqual(self.json("state")["block_tokens"], 128)
        self.json("drill", "--list")

        self.json("model", "remove", "l")

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
        self.json("tenant", "create", "a")
        for args, status, word in ((("key", "revoke", "nope"), 1, "nope"), (("key", "create", "--tenant", "nobody"), 1, "nobody"), (("model", "verify", "none"), 1, "none"),
                                   (("model", "import", "/no/such/file"), 1, "/no/such/file"), (("model", "import", "README.md"), 1, "README.md"), (("tenant", "remove", "nope"), 1, "nope"),
                                   (("tenant", "create", "../x"), 2, "../x"), (("run", "x", "--model", "none"), 1, "none")):
            out = carrel(*args, "--json", data=self.data)
            error = json.loads(out.stdout)["error"]
            self.assertIn(word, error["message"], args)
            self.assertIn(error["message"], out.stderr)
            self.assertEqual(out.returncode, status, (args, out.stderr))
        self.assertIn("/no/such.yaml", self.json("config", "check", "/no/such.yaml", status=1, data=False)["error"]["message"])

    def test_bench_of_a_shape_needs_no_weights(self):
        shape = "tests/golden/models/lfm2/config.json"
        for what in ("decode", "prefill"):
            f = self.json("bench", what, "--shape", shape, "--weights", "q8_0", "--tokens", "8", status=None, data=False)  # whether the bar is met is another matter
            self.assertGreater(f["tokens_per_s"], 0)
            self.assertAlmostEqual(f["share_of_bound"], f["tokens_per_s"] / f["bound_tokens_per_s"], delta=0.5 * f["share_of_bound"])
            self.assertIn(shape, f["model"])
        for args, status, word in ((("decode", "--shape", "/no/such"), 1, "/no/such"), (("decode", "--shape", "README.md"), 1, "README.md"),
                                   (("prefill", "--shape", "tests/golden/models/kimi_linear/config.json"), 1, "kimi_linear"),
                                   (("decode", "--shape", shape, "--model", "demo"), 2, "leave one of them out"), (("memory", "--shape", shape), 2, "tokenizer")):
            self.assertIn(word, self.json("bench", *args, status=status, data=False)["error"]["message"])

    def test_wrong_usage_is_status_2(self):
        for args in (("frobnicate",), ("key",), ("key", "create", "--no-such-option"), ("serve", "--listen", "nowhere"), ("bench", "everything"), ("model", "import")):
            out = carrel(*args)
            self.assertEqual((out.returncode, out.stdout), (2, ""), args)
            self.assertNotEqual(out.stderr, "", args)

    def test_wrong_usage_is_json_too(self):
        for args, word in ((("key", "rotate"), "id is required"), (("run",), "prompt is required"), (("key", "create", "--no-such-option"), "--no-such-option"), (("serv",), "serve"),
                           (("model", "imprt"), "model import"), (("config", "check", "/no/such.yaml", "--data", "x"), "--data")):
            error = self.json(*args, status=2, data=False)["error"]
            self.assertEqual(error["code"], "invalid_argument")
            self.assertIn(word, error["message"])

    def test_unknown_commands_name_the_nearest(self):
        for args, words in ((("sevre",), ("command sevre", "did you mean serve?")), (("key", "crate"), ("command key crate", "did you mean key create?")), (("xqzzyplugh",), ("xqzzyplugh",))):
            out = carrel(*args)
            for word in words:
                self.assertIn(word, out.stderr)
        self.assertNotIn("did you mean", carrel("xqzzyplugh").stderr)

    def test_help_and_version(self):
        self.assertIn("serve", carrel("--help").stdout)
        alone = carrel()
        self.assertEqual((alone.returncode, alone.stdout, alone.stderr), (0, carrel("--help").stdout, ""))
        self.assertEqual(carrel("help").stdout, carrel("--help").stdout)
        self.assertIn("--expires-days", carrel("help", "key", "create").stdout)
        self.assertEqual(carrel("help", "kez").returncode, 2)
        self.assertNotIn("--data", carrel("help", "golden").stdout)
        self.assertRegex(carrel("--version").stdout, r"^carrel \d+\.\d+\.\d+\n$")
        inside = self.json("version", data=False)
        self.assertEqual(self.json("--version", data=False), inside)
        self.assertIn("llama", inside["families"])
        self.assertEqual(inside["op_sets"], ["fast", "exact", "reference"])
        self.assertEqual({p["name"]: p["runs_here"] for p in inside["instruction_paths"]}[inside["instruction_path"]], True)
        for version in inside["libraries"].values():
            self.assertRegex(version, r"^\d+\.\d+")
        for numerics in inside["numerics"].values():
            self.assertRegex(numerics, r"^[0-9a-f]{64}$")
        self.assertIn(inside["numerics"]["fast"], carrel("version").stdout)

    def test_the_embedded_model_is_called_demo(self):
        self.assertTrue(self.json("model", "verify", "demo")["ok"])
        self.assertEqual(self.json("run", "hi", "--model", "demo", "--max-tokens", "2"), self.json("run", "hi", "--max-tokens", "2"))
        self.assertEqual(os.listdir(self.data), [])  # nothing of this needs a catalog
        server = Server("--model", "demo", data=self.data)
        try:
            self.assertEqual([m["id"] for m in json.loads(server.request("GET", "/v1/models")[2])["data"]], ["demo"])
        finally:
            server.stop()
        self.assertRegex(carrel("model", "list", data=self.data).stdout, r"(?m)^demo .* embedded$")
        self.assertIn("embedded demo", carrel("run", "hi", "--model", "none", data=self.data).stderr)

    def test_drills_pass_and_show_the_damage_in_words(self):
        all_of_them = self.json("drill", "--all")
        self.assertTrue(all_of_them["passed"] and all_of_them["complete"])
        self.assertEqual([d["name"] for d in all_of_them["drills"]], [d["name"] for d in self.json("drill", "--list")])
        verdicts = {d["name"]: d["verdict"] for d in all_of_them["drills"]}
        self.assertEqual([n for n, v in verdicts.items() if v != "passed"], ["missing-recurrent"])
        self.assertEqual(verdicts["missing-recurrent"], "not applicable")
        cases = {c["damage"].split(":")[0]: c for d in all_of_them["drills"] if d["name"].startswith("missing") for c in d["cases"]}
        for c in cases.values():
            self.assertEqual(c["answer"], "The code is 19-26.")
            self.assertIn("would_have_answered", c)
        wrong = {group for group, c in cases.items() if c["would_have_answered"] != c["answer"]}
        self.assertLessEqual({"csa", "csa.index", "window"}, wrong)  # the table of the demo model's README
        lost = [d for d in all_of_them["drills"] if d["name"] == "offloaded-not-restored"][0]["cases"]
        self.assertIn(True, ["would_have_answered" in c and c["would_have_answered"] != c["answer"] for c in lost])

    def test_drills_for_people(self):
        out = carrel("drill", "missing-window", "first-vs-hit", data=self.data)
        self.assertEqual(out.returncode, 0, out.stderr)
        self.assertRegex(out.stdout, r"(?m)^drill +verdict +damage +counter +reused tokens +ms$")
        self.assertRegex(out.stdout, r"(?m)^missing-window +passed +\S+: record evicted at token \d+ +vetoes\{window\} 0 → 1 +\d+ of \d+ +\d+$")
        self.assertRegex(out.stdout, r"(?m)^drill +lost +answered +the damaged state would have answered$")
        self.assertIn("2 passed, 0 failed, 0 not applicable to demo", out.stdout)
        self.assertNotIn("\r", out.stderr)
        plain = carrel("drill", "missing-window", "--hide-damage", data=self.data)
        self.assertNotIn("would have answered", plain.stdout)
        for args, word in ((("missing-windw",), "did you mean missing-window"), (("--all", "toctou"), "--all"), (("nonsense",), "--list")):
            bad = carrel("drill", *args, data=self.data)
            self.assertEqual((bad.returncode, bad.stdout), (2, ""), args)
            self.assertIn(word, bad.stderr)
        self.assertRegex(carrel("drill", "--list").stdout, r"(?m)^toctou +\S")
        self.assertEqual(carrel("drill", "--model", "none", data=self.data).returncode, 1)

    def test_state_lists_what_a_model_registers(self):
        listed = self.json("state")
        self.assertEqual({g["kind"] for g in listed["groups"]}, {"compressed_kv", "tail", "window", "indexer"})
        for g in listed["groups"]:
            self.assertEqual((g["bytes_per_token"] > 0) + (g["bytes_per_point"] > 0), 1, g)
            self.assertGreaterEqual(g["page_bytes"], g["row_bytes"] * g["layers"])
            self.assertNotIn("records", g)
        text = carrel("state", data=self.data).stdout
        for words in ("blocks of 128 tokens", "csa.index", "a hit needs", "host memory off (cache.offload.enable, .tiers, .host_memory_size)", "disk off"):
            self.assertIn(words, text)
        folder = os.path.join(self.data, "lfm2")  # the vectors have no tokenizer; any one will do
        shutil.copytree("tests/golden/models/lfm2", folder)
        shutil.copy(os.path.join(DEMO, "tokenizer.json"), folder)
        recurrent = self.json("state", "--model", folder)
        self.assertIn("recurrent", {g["kind"] for g in recurrent["groups"]})
        self.assertGreater(recurrent["ladder_tokens"], 0)
        lost = self.json("drill", "missing-recurrent", "--model", folder)
        self.assertEqual((lost["passed"], lost["n_passed"], lost["show_damage"]), (True, 1, False))

    def test_plan_sizes_a_model_without_reading_its_weights(self):
        self.json("model", "import", DEMO, "--name", "l")
        plans = [self.json("plan", "--model", m, "--context", "512", "--concurrency", "3") for m in ("demo", DEMO, "l")]
        for p in plans:
            self.assertEqual((p["context"], p["concurrency"], p["fits"]), (512, 3, True))
            parts = p["weights_bytes"] + p["activations_bytes"] + p["inputs_bytes"] + p["scratch_bytes"] + p["process_bytes"] + 3 * p["sequence_bytes"]
            self.assertEqual(p["total_bytes"], parts)
            self.assertEqual({g["kind"] for g in p["groups"]}, {"compressed_kv", "indexer", "window", "tail"})
        for same in ("weights_bytes", "activations_bytes", "states_bytes", "groups"):
            self.assertEqual(len({json.dumps(p[same]) for p in plans}), 1, same)  # embedded, folder and imported
        self.assertEqual(plans[2]["mapped_while_loading_bytes"], 0)
        smaller = self.json("plan", "--context", "512", "--concurrency", "3", "--kv-dtype", "bf16")
        larger = self.json("plan", "--context", "512", "--concurrency", "3", "--kv-dtype", "f32")
        self.assertLess(smaller["states_bytes"], larger["states_bytes"])
        text = carrel("plan", "--context", "512", "--concurrency", "3", data=self.data).stdout
        for word in ("weights", "activations", "process", "csa", "padding", "tokens per GB", "cache.max_size_gb", "fits"):
            self.assertIn(word, text)

    def test_plan_says_what_does_not_fit_and_what_would(self):
        ample = self.json("plan", "--context", "512", "--concurrency", "4")
        short = str(ample["total_bytes"] - ample["states_bytes"] - ample["process_bytes"] // 2)  # what a process takes is measured anew each time
        tight = self.json("plan", "--context", "512", "--concurrency", "4", "--memory", short, status=1)
        self.assertEqual((tight["fits"], tight["cache_max_size_gb"]), (False, None))
        self.assertLess(tight["largest_context"], 512)
        none = carrel("plan", "--context", "512", "--concurrency", "4", "--memory", "1MB").stdout
        self.assertIn("does not fit: needs", none)
        self.assertIn("largest context for 4 at a time: none, not one token fits; largest number of this context: none, not one fits", none)
        self.assertTrue(self.json("plan", "--context", "512", "--concurrency", "4", "--memory", "16GiB")["fits"])
        for args, status, word in ((("--model", "none"), 1, "none"), (("--context", "1000000000"), 2, "more than this model's"), (("--memory", "plenty"), 2, "12GB"),
                                   (("--context", "0"), 2, "--context"), (("--concurrency", "9223372036854775807"), 2, "--concurrency"), (("--concurrency", "1000001"), 2, "1000000"), (("--kv-dtype", "int3"), 2, "kv_dtype")):
            self.assertIn(word, self.json("plan", *args, status=status)["error"]["message"], args)

    def test_serve_refuses_what_cannot_fit_before_reading_weights(self):
        def demo_of(name, context):
            folder = os.path.join(self.data, name)
            shutil.copytree(DEMO, folder)
            with open(os.path.join(folder, "config.json")) as f:
                made = json.load(f)
            made["max_position_embeddings"] = context
            with open(os.path.join(folder, "config.json"), "w") as f:
                json.dump(made, f)
            return folder

        def refusal(text):
            config = os.path.join(self.data, "c.yaml")
            with open(config, "w") as f:
                f.write(text)
            status, text = run_serve("--config", config, data=self.data)
            self.assertEqual(status, 1, text)
            self.assertNotIn("ready", text)
            return text

        text = refusal("model: {path: %s}\ncache: {max_size_gb: 0.01}\n" % demo_of("long", 200_000))
        for word in ("one sequence of 200000 tokens needs", "cache.max_size_gb gives 10.0 MB", "model.max_sequence_length", "carrel plan"):
            self.assertIn(word, text)
        text = refusal("model: {path: %s}\n" % demo_of("vast", 1_000_000_000))  # no machine holds a sequence this long
        for word in ("weights", "activations", "1 sequence of 1000000000 tokens", "it would fit with sequences of", "model.max_sequence_length"):
            self.assertIn(word, text)
        # The way out that it names works.
        config = os.path.join(self.data, "d.yaml")
        with open(config, "w") as f:
            f.write("model: {path: %s, max_sequence_length: 4096}\ncache: {max_size_gb: 0.01}\n" % os.path.join(self.data, "long"))
        Server("--config", config, data=self.data).stop()

    def test_a_command_that_only_looks_makes_no_folder(self):
        absent = os.path.join(self.data, "absent")
        for args in (("tenant", "list"), ("tenant", "remove", "a"), ("key", "list"), ("key", "revoke", "a"), ("key", "rotate", "a"), ("model", "list"), ("model", "verify"), ("model", "verify", "l"),
                     ("model", "remove", "l")):
            out = carrel(*args, data=absent)
            self.assertEqual(out.returncode, 1, args)
            self.assertIn(absent + ": there is no such data folder", out.stderr)
            self.assertIn("holds no catalog", carrel(*args, data=self.data).stderr)
        self.assertEqual(os.listdir(self.data), [])

    def test_key_list_shows_what_limits_a_key(self):
        self.json("key", "create", "--name", "plain")
        self.json("key", "create", "--name", "bound", "--expires-days", "3", "--net", "10.0.0.0/8", "--net", "fd00::/8", "--model", "demo")
        gone = self.json("key", "create", "--name", "gone")
        self.json("key", "revoke", gone["id"])
        plain, bound, gone = carrel("key", "list", data=self.data).stdout.splitlines()
        self.assertRegex(plain, r"plain$")
        self.assertRegex(bound, r"bound  expires \d{4}-\d\d-\d\d \d\d:\d\d UTC  only from 10.0.0.0/8,fd00::/8  only for demo$")
        self.assertRegex(gone, r"gone  revoked \d{4}-")

    def test_a_model_without_tokenizer_says_so_at_import(self):
        out = carrel("model", "import", GOLDEN, "--name", "dumb", "--json", data=self.data)
        self.assertFalse(json.loads(out.stdout)["servable"])
        self.assertIn("has no tokenizer", out.stderr)
        self.assertNotIn("carrel serve", carrel("model", "import", GOLDEN, "--name", "dumb2", data=self.data).stdout)

    def test_golden_needs_no_file_beside_the_vectors(self):
        elsewhere = os.path.join(self.data, "a", "b", "c", "llama")
        shutil.copytree(GOLDEN, elsewhere)
        found = self.json("golden", elsewhere, "--ops", "fast", data=False)
        self.assertEqual((found["checked"], found["skipped"], found["files"][0]["mean_kl_limit"]), (1, 0, 0.0001))
        limits = os.path.join(self.data, "limits.json")
        with open(limits, "w") as f:
            json.dump({"fast": {"default": {"mean_kl": 1e-30, "top1": 0.5}}}, f)
        self.assertFalse(self.json("golden", elsewhere, "--ops", "fast", "--limits", limits, status=1, data=False)["passed"])

    def test_golden_says_what_it_compared(self):
        quantised = carrel("golden", "tests/golden/gguf/llama-q4_0.gguf", "--ops", "fast")
        self.assertNotIn("worst", quantised.stdout)  # no bound is meant for rounded activations
        self.assertRegex(quantised.stdout, r"KL \S+ of 2.00e-03  top-1 \S+ of at least 0.900\nfast: 1 checked, 1 ok, 0 failed, 0 skipped\n$")
        nothing = carrel("golden", "tests/golden/models/bamba")
        self.assertEqual(nothing.returncode, 1)
        self.assertIn("exact: 0 checked, 0 ok, 0 failed, 1 skipped", nothing.stdout)
        self.assertFalse(self.json("golden", "tests/golden/models/bamba", status=1, data=False)["passed"])

    def test_what_is_given_less_than_asked_is_said_with_both_numbers(self):
        config = os.path.join(self.data, "c.yaml")
        with open(config, "w") as f:
            f.write("model: {max_sequence_length: 9000}\nscheduler: {max_num_seqs: 100}\n")
        said = carrel("run", "hi", "--max-tokens", "1", "--config", config, data=self.data).stderr
        self.assertRegex(said, r"max_sequence_length is 9000, but this model holds 8192 tokens")
        self.assertRegex(said, r"max_num_seqs is 100, but server.max_concurrent_requests is 64")
        with open(config, "w") as f:
            f.write("cache: {block_size: 64}\n")
        refused = carrel("run", "hi", "--config", config, data=self.data).stderr
        self.assertIn("carrel: cache.block_size: is 64, this model's states need 128; use auto", refused)

    def test_a_host_tier_that_holds_nothing_is_said(self):
        config = os.path.join(self.data, "c.yaml")
        for size, words in (("0", "host_memory_size is 0: nothing is kept in host memory"), ("1KB", "host_memory_size is 1.00 kB, a block of this model's state takes up to")):
            with open(config, "w") as f:
                f.write("cache: {offload: {enable: true, tiers: [vram, host_memory], host_memory_size: %s}}\n" % size)
            self.assertIn(words, carrel("run", "hi", "--max-tokens", "1", "--config", config, data=self.data).stderr)

    def test_a_model_too_short_for_drills_says_so(self):
        config = os.path.join(self.data, "c.yaml")
        with open(config, "w") as f:
            f.write("model: {max_sequence_length: 16}\n")
        said = self.json("drill", "--all", "--config", config, status=1)["error"]
        self.assertEqual(said["object"], "model.max_sequence_length")
        self.assertIn("its context is 16", said["message"])

    def test_files_of_cache_explain_are_read_with_care(self):
        def refusal(option, content):
            path = os.path.join(self.data, "given")
            with open(path, "wb") as f:
                f.write(content)
            return self.json("cache", "explain", option, path, "--url", "https://127.0.0.1:1", status=2)["error"]["message"]

        for option in ("--prompt", "--input", "--messages"):
            self.assertIn("is not UTF-8 text", refusal(option, b"caf\xe9"))
        self.assertIn("is not JSON: it breaks at line 3, column 1", refusal("--messages", b'[\n{"role": "user",\n}]'))
        self.assertIn("array of messages", refusal("--messages", b"7"))

    def test_clear_text_to_an_https_server_names_the_cause(self):
        server = Server(data=self.data)
        said = carrel("cache", "verify", "--url", server.url.replace("https://", "http://"), "--key", "crl_x", data=self.data).stderr
        server.stop()
        self.assertIn("use https:// instead of http://", said)

    def test_serve_says_that_it_is_ready_as_json(self):
        p = subprocess.Popen([BIN, "serve", "--data", self.data, "--listen", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        ready = json.loads(p.stdout.readline())
        p.send_signal(signal.SIGTERM)
        rest = p.stdout.read()
        self.assertEqual((p.wait(60), rest), (0, ""))
        p.stdout.close()
        self.assertRegex(ready["ready"], r"^https://127\.0\.0\.1:\d+$")
        self.assertTrue(os.path.exists(ready["ca"]) and ready["key"].startswith("crl_"))

    def test_a_first_start_that_fails_keeps_the_key_for_the_next(self):
        refused = carrel("serve", "--listen", "192.0.2.1:0", data=self.data)
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertEqual(self.json("key", "list"), [])
        server = Server(data=self.data)
        try:
            self.assertEqual(server.request("GET", "/v1/models")[0], 200)  # with the key that it printed
        finally:
            server.stop()

    def test_one_server_per_data_folder(self):
        server = Server(data=self.data)
        try:
            second = carrel("serve", "--listen", "127.0.0.1:0", data=self.data)
            self.assertEqual(second.returncode, 1)
            self.assertIn("another `carrel serve` runs on this data folder", second.stderr)
            server.process.kill()
            server.process.wait()
            Server(data=self.data).stop()  # the lock died with its holder
        finally:
            server.log.close()

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
