"""The management plane through its real door: who may, what drills and explanations say, what a purge leaves."""
import json
import os
import subprocess
import threading
import time
import unittest

from harness import BIN, PATIENCE, Server

server = None
admin = None
FACTS = open("docs/examples/house.txt").read().strip()


def setUpModule():
    global server, admin
    config = "cache: {offload: {enable: true, tiers: [vram, host_memory], host_memory_size: 512MB}}\n"
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"carrel-admin-{os.getpid()}.yaml")
    with open(path, "w") as f:
        f.write(config)
    server = Server("--config", path)
    os.unlink(path)
    admin = server.cli("key", "create", "--scope", "admin", "--name", "admin")["key"]


def tearDownModule():
    server.stop()


def act(path, body=None, **kw):
    return server.call("/admin/v1/" + path, body if body is not None else {}, key=admin, **kw)


def look(path):
    status, _, data = server.request("GET", "/admin/v1/" + path, key=admin)
    return status, json.loads(data)


def chat(question, facts=FACTS, key="own", **extra):
    messages = [{"role": "user", "content": facts + "\n\n" + question}]
    status, r = server.call("/v1/chat/completions", {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 16, **extra}, key=key)
    assert status == 200, r
    return messages, r


def audit():
    import sqlite3
    db = sqlite3.connect(f"file:{server.data}/catalog.db?mode=ro", uri=True)
    return db.execute("SELECT actor, action, object, detail FROM audit ORDER BY seq").fetchall()


class Scopes(unittest.TestCase):
    def test_default_deny_over_the_whole_plane(self):
        routes = [r for r in json.loads(subprocess.run([BIN, "routes", "--json"], capture_output=True, text=True).stdout) if r["plane"] == "admin"]
        self.assertGreaterEqual(len(routes), 6)
        scrape = server.cli("key", "create", "--scope", "metrics:read")["key"]
        revoked = server.cli("key", "create", "--scope", "admin")
        server.cli("key", "revoke", revoked["id"])
        for r in routes:
            self.assertTrue(r["path"].startswith("/admin/v1/"), r)
            body = "{}" if r["method"] == "POST" else None
            for bad in (None, "crl_wrong", revoked["key"], admin[:-1] + "x"):
                self.assertEqual(server.request(r["method"], r["path"], body=body, key=bad)[0], 401, r)
            for other in (server.key, scrape):
                status, _, data = server.request(r["method"], r["path"], body=body, key=other)
                self.assertEqual((status, json.loads(data)["error"]["code"]), (403, "insufficient_scope"), r)
        self.assertEqual(server.request("GET", "/admin/v1/nothing", key=None)[0], 401)
        self.assertEqual(server.request("GET", "/admin/v1/nothing", key=admin)[0], 404)
        for method, path in (("GET", "/admin/v1/nothing"), ("DELETE", "/admin/v1/drills")):  # what there is is not told either
            self.assertEqual(server.request(method, path, key=server.key)[0], 403, path)
        status, headers, _ = server.request("DELETE", "/admin/v1/drills", key=admin)
        self.assertEqual((status, headers["allow"]), (405, "GET, POST"))

    def test_an_admin_key_is_for_nothing_else(self):
        for method, path in (("GET", "/v1/models"), ("GET", "/v1/usage"), ("DELETE", "/v1/cache")):
            self.assertEqual(server.request(method, path, key=admin)[0], 403, path)

    def test_wrong_bodies_name_the_field(self):
        for path, body, param in (("drills", {"names": "x"}, "names"), ("drills", {"names": ["missing-link"]}, "missing-link"), ("drills", {"show_damage": 1}, "show_damage"),
                                  ("cache/purge", {}, "tenant"), ("cache/explain", {"tenant": "default"}, "messages"), ("cache/explain", {"prompt": "x"}, "tenant"),
                                  ("cache/explain", {"tenant": "default", "prompt": ["a", "b"]}, "prompt"), ("cache/explain", {"tenant": "default", "prompt": "a", "input": "b"}, "messages")):
            status, r = act(path, body)
            self.assertEqual((status, r["error"]["param"]), (400, param), (path, body, r))
        for path in ("cache/purge", "cache/explain"):
            status, r = act(path, {"tenant": "nobody", "prompt": "x"})
            self.assertEqual(status, 404, r)


class Drills(unittest.TestCase):
    def test_a_drill_runs_beside_serving_and_is_audited(self):
        answers = []
        asker = threading.Thread(target=lambda: answers.append(chat("Who keeps the lion room?", max_tokens=8)[1]))
        asker.start()
        status, r = act("drills", {"names": ["missing-window", "missing-recurrent"]}, timeout=300)
        asker.join()
        self.assertEqual(status, 200, r)
        self.assertEqual(answers[0]["choices"][0]["message"]["content"], "It is Pavel.")
        self.assertTrue(r["passed"])
        window, recurrent = r["drills"]
        self.assertEqual((window["verdict"], recurrent["verdict"]), ("passed", "not applicable"))
        case = window["cases"][0]
        self.assertTrue(case["tokens_equal"] and case["logits_equal"])
        self.assertLess(case["effective"], case["nominal"])
        self.assertGreater(case["counter"]["after"], case["counter"]["before"])
        self.assertEqual(case["answer"], "The code is 19-26.")
        self.assertNotEqual(case["would_have_answered"], case["answer"])
        self.assertEqual(server.metric("carrel_drill_runs_total", drill="missing-window", verdict="passed"), 1)
        status, table = look("drills")
        self.assertEqual((status, table["running"], table["last"]), (200, None, r))
        self.assertIn("toctou", [d["name"] for d in table["drills"]])
        self.assertIn("missing-window", [x[3] for x in audit() if x[1] == "drill.run"][-1])
        self.assertEqual(server.metric("carrel_digest_mismatch_total"), 0)  # what a drill damages is its own

    def test_a_name_given_twice_runs_once(self):
        status, r = act("drills", {"names": ["half-block", "missing-recurrent", "half-block"], "show_damage": False}, timeout=300)
        self.assertEqual((status, [d["name"] for d in r["drills"]]), (200, ["half-block", "missing-recurrent"]))
        self.assertIn("half-block missing-recurrent", [x[3] for x in audit() if x[1] == "drill.run"][-1])

    def test_a_context_too_short_for_drills_is_refused_and_the_server_lives(self):
        path = os.path.join(server.data, "short.yaml")
        with open(path, "w") as f:
            f.write("model: {max_sequence_length: 16}\n")
        short = Server("--config", path)
        key = short.cli("key", "create", "--scope", "admin")["key"]
        status, r = short.call("/admin/v1/drills", {"names": ["half-block"]}, key=key)
        self.assertEqual((status, r["error"]["param"]), (400, "model.max_sequence_length"), r)
        self.assertIn("its context is 16", r["error"]["message"])
        self.assertEqual(short.request("GET", "/livez")[0], 200)
        short.stop()

    def test_one_go_at_a_time(self):
        first = []
        runner = threading.Thread(target=lambda: first.append(act("drills", {"names": ["toctou", "bit-flip"], "show_damage": False}, timeout=300)))
        runner.start()
        while look("drills")[1]["running"] in (None, "about to begin") and runner.is_alive():
            time.sleep(0.01)
        n = len([x for x in audit() if x[1] == "drill.run"])
        status, r = act("drills")
        self.assertEqual((status, r["error"]["code"]), (409, "already_exists"))
        self.assertEqual(len([x for x in audit() if x[1] == "drill.run"]), n)
        runner.join()
        self.assertEqual((first[0][0], first[0][1]["passed"]), (200, True))
        self.assertNotIn("would_have_answered", json.dumps(first[0][1]))


    def test_shutdown_ends_a_go_after_the_drill_at_work(self):
        other = Server()
        key = other.cli("key", "create", "--scope", "admin")["key"]
        answer = []
        runner = threading.Thread(target=lambda: answer.append(other.call("/admin/v1/drills", {}, key=key, timeout=300)))
        runner.start()
        while json.loads(other.request("GET", "/admin/v1/drills", key=key)[2])["running"] in (None, "about to begin"):
            time.sleep(0.005)
        start = time.time()
        other.stop()  # fails when the exit status is not 0
        self.assertLess(time.time() - start, 10 * PATIENCE)
        runner.join()
        self.assertEqual((answer[0][0], answer[0][1]["error"]["code"]), (503, "unavailable"))


class Explain(unittest.TestCase):
    def setUp(self):
        self.tenant = "e" + os.urandom(4).hex()
        server.cli("tenant", "create", self.tenant)
        self.key = server.cli("key", "create", "--tenant", self.tenant)["key"]

    def explain(self, messages, **body):
        status, r = act("cache/explain", {"tenant": self.tenant, "messages": messages, **body})
        self.assertEqual(status, 200, r)
        return r

    def test_a_prompt_beyond_the_context_says_so(self):
        status, r = act("cache/explain", {"tenant": "default", "prompt": "word " * 9000})
        self.assertEqual((status, r["context_tokens"]), (200, 8192))
        self.assertGreater(r["prompt_tokens"], r["context_tokens"])
        path = os.path.join(server.data, "long.txt")
        with open(path, "w") as f:
            f.write("word " * 9000)
        said = subprocess.run([BIN, "cache", "explain", "--prompt", path, "--url", server.url, "--data", server.data], env={**os.environ, "CARREL_KEY": admin}, capture_output=True, text=True)
        self.assertIn("it does not fit: the model's context is 8192 tokens", said.stdout)

    def test_after_a_hit_a_partial_hit_and_a_purge(self):
        messages, r = chat("Who keeps the lion room?", key=self.key)
        self.assertEqual(r["usage"]["carrel"]["nominal"], 0)
        whole = self.explain(messages)
        self.assertEqual((whole["nominal"], whole["effective"], whole["veto"]), (whole["most"], whole["most"], []))
        self.assertEqual(whole["prompt_tokens"], r["usage"]["prompt_tokens"])
        before = server.metric("carrel_matched_tokens_total", tenant=self.tenant)
        self.assertEqual(self.explain(messages), whole)  # nothing is taken, nothing counted
        self.assertEqual(server.metric("carrel_matched_tokens_total", tenant=self.tenant), before)

        # Half of it is known: the rest differs from there on.
        words = FACTS.split(". ")
        other = [{"role": "user", "content": ". ".join(words[:30] + ["The lift is checked once a month"] + words[31:])}]
        part = self.explain(other)
        self.assertTrue(0 < part["nominal"] < part["most"], part)
        self.assertEqual(part["effective"], part["nominal"])

        status, r = act("cache/purge", {"tenant": self.tenant})
        self.assertEqual(status, 200)
        self.assertGreater(r["dropped_records"], 0)
        gone = self.explain(messages)
        self.assertEqual((gone["nominal"], gone["effective"], gone["veto"]), (0, 0, []))

    def test_each_way_to_give_a_prompt_is_the_routes_own(self):
        text = FACTS + " A text to continue."
        server.call("/v1/completions", {"model": "demo", "prompt": text, "max_tokens": 1}, key=self.key)
        server.call("/v1/infer", {"input": text + " And an input.", "max_tokens": 1}, key=self.key)
        for body in ({"prompt": text}, {"input": text + " And an input."}):
            status, r = act("cache/explain", {"tenant": self.tenant, **body})
            self.assertEqual((status, r["nominal"]), (200, r["most"]), (body.keys(), r))
            self.assertGreater(r["most"], 256)

    def test_other_tenants_see_nothing(self):
        messages, _ = chat("Who keeps the lion room?", key=self.key)
        status, r = act("cache/explain", {"tenant": "default", "messages": [{"role": "user", "content": self.tenant + FACTS}]})
        self.assertEqual((status, r["nominal"]), (200, 0))

    def test_verify_and_state(self):
        chat("Who keeps the lion room?", key=self.key)
        status, r = act("cache/verify")
        self.assertEqual((status, r["ok"], r["quarantined"]), (200, True, 0))
        self.assertGreater(r["records"], 0)
        self.assertEqual([x[1] for x in audit()][-1], "cache.verify")
        status, s = look("state")
        self.assertEqual((status, s["block_tokens"]), (200, 128))
        self.assertEqual({g["kind"] for g in s["groups"]}, {"compressed_kv", "tail", "window", "indexer"})
        for g in s["groups"]:
            self.assertGreater(g["records"], 0, g)
            self.assertEqual(g["bytes"], g["records"] * g["page_bytes"])
            for rule in ("life_cycle", "restore_rule", "hit_rule"):
                self.assertGreater(len(g[rule]), 10)
        self.assertEqual([(t["tier"], t["active"]) for t in s["tiers"]], [("device", True), ("host_memory", True), ("disk", False)])
        self.assertEqual(s["tiers"][1]["budget_bytes"], 512_000_000)


class Purge(unittest.TestCase):
    def test_case_state_h7(self):
        """Purge answers what it did, also under load; after its 200 the next equal prompt is cold in every tier."""
        facts = "Purged. " + FACTS
        cached = lambda: chat("Who keeps the lion room?", facts)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
        cached()
        self.assertGreater(cached(), 0)
        stop = threading.Event()
        errors = []

        def load(i):
            while not stop.is_set():
                try:
                    chat("What is the code of the fern door?", f"{i} " + FACTS, max_tokens=32)
                    server.call("/v1/chat/completions", {"model": "demo", "messages": [{"role": "user", "content": facts}], "max_tokens": 200, "ignore_eos": True})
                except Exception as e:
                    errors.append(e)

        threads = [threading.Thread(target=load, args=(i,)) for i in range(3)]
        [t.start() for t in threads]
        time.sleep(1)
        status, r = act("cache/purge", {"tenant": "default"})
        self.assertEqual(status, 200, r)
        self.assertGreater(r["dropped_records"], 0)
        stop.set()
        [t.join() for t in threads]
        self.assertEqual(errors, [])
        # With nobody else at work: what the purge says is what the next prompt finds.
        cached()
        status, r = act("cache/purge", {"tenant": "default"})
        self.assertGreater(r["dropped_records"], 0)
        self.assertEqual(act("cache/purge", {"tenant": "default"})[1]["dropped_records"], 0)
        self.assertEqual(cached(), 0)
        state = look("state")[1]
        self.assertEqual([x[1] for x in audit() if x[2] == "default"][-2:], ["cache.purge", "namespace.renew"])
        self.assertEqual(state["counters"]["digest_mismatches"], 0)

    def test_a_tenants_own_purge_is_audited(self):
        self.assertEqual(server.request("DELETE", "/v1/cache")[0], 200)
        actor, action, what, _ = audit()[-2]
        self.assertEqual((action, what), ("cache.purge", "default"))
        self.assertRegex(actor, r"^key:")


class HostTier(unittest.TestCase):
    N = 40  # prompts; the smallest device cache that may be asked for holds 14 of them in rows of float32
    ENV = {"CARREL_CACHE_MAX_SIZE_GB": "0.01", "CARREL_MODEL_MAX_SEQUENCE_LENGTH": "1024", "CARREL_MODEL_KV_DTYPE": "f32"}

    def test_what_leaves_the_device_comes_back(self):
        """A device cache of a few prompts: earlier ones go to host memory and are restored; usage, metrics and log say so."""
        small = Server(env={**self.ENV, "CARREL_CACHE_OFFLOAD_ENABLE": "true", "CARREL_CACHE_OFFLOAD_HOST_MEMORY_SIZE": "256MB", "CARREL_CACHE_OFFLOAD_TIERS": "vram,host_memory"})
        try:
            def ask(i):
                body = {"model": "demo", "messages": [{"role": "user", "content": f"Text {i}. " + FACTS}], "temperature": 0, "max_tokens": 2, "logprobs": True}
                status, r = small.call("/v1/chat/completions", body)
                self.assertEqual(status, 200, r)
                return r
            first = [ask(i) for i in range(self.N)]
            again = [ask(i) for i in range(self.N)]
            restored = sum(r["usage"]["carrel"]["restored"] for r in again)
            self.assertGreater(restored, 0)
            self.assertEqual([r["choices"] for r in first], [r["choices"] for r in again])
            self.assertEqual(small.metric("carrel_hit_tokens_total", **{"class": "effective_restored"}), sum(r["usage"]["carrel"]["restored"] for r in first + again))
            self.assertGreater(small.metric("carrel_offloaded_extents_total", tier="host_memory"), 0)
            self.assertGreater(small.metric("carrel_restored_records_total", tier="host_memory"), 0)
            self.assertGreater(small.metric("carrel_tier_watermark_ratio", tier="host_memory"), 0)
            self.assertGreater(small.metric("carrel_tier_bytes", tier="host_memory"), 0)
            self.assertEqual(small.metric("carrel_state_restore_failures_total"), 0)
            key = small.cli("key", "create", "--scope", "admin")["key"]
            on_device = sum(g["records"] for g in json.loads(small.request("GET", "/admin/v1/state", key=key)[2])["groups"])
            status, dropped = small.call("/admin/v1/cache/purge", {"tenant": "default"}, key=key)
            self.assertEqual(status, 200)
            self.assertGreater(dropped["dropped_records"], on_device)  # those that only host memory had, too
            self.assertEqual(small.metric("carrel_tier_bytes", tier="host_memory"), 0)
            for i in (0, self.N // 2, self.N - 1):  # cold in every tier
                cold = ask(i)
                self.assertEqual((cold["usage"]["carrel"]["nominal"], cold["usage"]["carrel"]["restored"]), (0, 0))
                self.assertEqual(cold["choices"], first[i]["choices"])
            with open(os.path.join(small.data, "server.log")) as f:
                log = f.read()
            self.assertFalse(os.path.exists(os.path.join(small.data, "extents")))
            self.assertRegex(log, r"restored=[1-9]\d* ")
        finally:
            small.stop()

    def test_vetoes_are_told_in_usage_log_and_metrics(self):
        """Without a lower tier, what was dropped is a veto with its reason and cure, in every dialect and in streams."""
        small = Server(env=self.ENV)
        try:
            def usage(path, prompt, stream):
                body = {"model": "demo", "temperature": 0, "max_tokens": 2, "stream": stream, **prompt}
                if stream and path != "infer":
                    body["stream_options"] = {"include_usage": True}
                status, _, data = small.request("POST", "/v1/" + path, body)
                self.assertEqual(status, 200, data)
                if not stream:
                    return json.loads(data)["usage"]["carrel"]
                return [json.loads(x[6:]) for x in data.decode().split("\n\n") if x.startswith("data: {")][-1]["usage"]["carrel"]
            dialects = (("infer", lambda t: {"input": t}), ("chat/completions", lambda t: {"messages": [{"role": "user", "content": t}]}), ("completions", lambda t: {"prompt": t}))
            for i in range(self.N):  # windows in mid-prompt are the first to go
                usage(dialects[i % 3][0], dialects[i % 3][1](f"Text {i}. " + FACTS), False)
            half = ". ".join(FACTS.split(". ")[:36])
            seen = []
            for i in range(self.N - 12, self.N - 6):
                path, prompt = dialects[i % 3]
                found = usage(path, prompt(f"Text {i}. " + half + " Who keeps the lion room?"), i < self.N - 9)
                self.assertLess(found["effective"], found["nominal"], path)
                self.assertTrue(found["veto"], path)
                seen += found["veto"]
            for v in seen:
                self.assertEqual(set(v), {"kind", "group", "position", "residency", "reason", "cure"})
                self.assertTrue(v["reason"] and v["cure"])
            self.assertGreater(small.metric("carrel_state_veto_total"), 0)
            with open(os.path.join(small.data, "server.log")) as f:
                self.assertRegex(f.read(), r"vetoes=[a-z.]+@\d+:evicted")
        finally:
            small.stop()


class Commands(unittest.TestCase):
    def run_cli(self, *args, status=0, key=admin):
        out = subprocess.run([BIN, *args, "--url", server.url, "--data", server.data], capture_output=True, text=True, timeout=120, env={**os.environ, "CARREL_KEY": key or admin})
        self.assertEqual(out.returncode, status, out.stderr)
        return out

    def test_cache_explain_verify_purge(self):
        server.cli("tenant", "create", "asked")
        key = server.cli("key", "create", "--tenant", "asked")["key"]
        messages, _ = chat("Who keeps the lion room?", key=key)
        file = os.path.join(server.data, "messages.json")
        with open(file, "w") as f:
            json.dump(messages, f)
        text = self.run_cli("cache", "explain", "--messages", file, "--tenant", "asked").stdout
        for words in ("prompt of tenant asked: ", "known:  512 tokens", "reused: 512 tokens", "every state is there"):
            self.assertIn(words, text)
        document = json.loads(self.run_cli("cache", "explain", "--messages", file, "--tenant", "asked", "--json").stdout)
        self.assertEqual(document["effective"], 512)
        self.assertIn("records are what was published", self.run_cli("cache", "verify").stdout)
        self.assertRegex(self.run_cli("cache", "purge", "--tenant", "asked").stdout, r"tenant asked: [1-9]\d* records dropped")
        self.assertIn("is not known for this tenant", self.run_cli("cache", "explain", "--messages", file, "--tenant", "asked").stdout)
        refused = self.run_cli("cache", "verify", status=1, key=server.key)
        self.assertIn("--scope admin", refused.stderr)
        self.assertEqual(json.loads(self.run_cli("cache", "purge", "--tenant", "nobody", "--json", status=1).stdout)["error"]["code"], "not_found")
        self.run_cli("cache", "explain", "--messages", file, "--prompt", file, status=2)

    def test_nobody_there_and_a_stranger(self):
        out = subprocess.run([BIN, "cache", "verify", "--url", "https://127.0.0.1:1", "--data", server.data, "--key", admin], capture_output=True, text=True)
        self.assertEqual(out.returncode, 1)
        self.assertIn("no server answers there", out.stderr)
        out = subprocess.run([BIN, "cache", "verify", "--url", server.url, "--data", "/nowhere", "--key", admin], capture_output=True, text=True)
        self.assertEqual(out.returncode, 1)
        self.assertIn("certificate", out.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
