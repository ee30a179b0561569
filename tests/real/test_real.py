"""Real checkpoints: held against the vectors of golden/real by `carrel golden`, then imported, served, and asked over HTTPS."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "api"))
from harness import BIN, Server  # noqa: E402

GOLDEN = "tests/golden/real/"
SMOLLM2 = {"file": os.environ["SMOLLM2"], "golden": GOLDEN + "smollm2-135m-instruct-q4_1", "name": "smol"}
GEMMA = {"file": os.environ["GEMMA"], "golden": GOLDEN + "gemma-3-270m-q4_k_m", "name": "gemma"}


def prompts(model):
    with open(model["golden"] + "/prompts.json") as f:
        return {p["id"]: p for p in json.load(f)["prompts"]}


class RealModel:
    """Base of the tests of one model: imported once, served as each test wants it."""

    model = None
    exact = None

    @classmethod
    def setUpClass(cls):
        if not cls.model["file"]:
            raise unittest.SkipTest("the checkpoint was not fetched")  # fetch.py printed why
        cls.data = tempfile.mkdtemp(prefix="carrel-real-")
        cls.addClassCleanup(shutil.rmtree, cls.data, ignore_errors=True)
        cls.addClassCleanup(cls.stop_exact)
        out = subprocess.run([BIN, "model", "import", cls.model["file"], "--name", cls.model["name"], "--data", cls.data, "--json"], capture_output=True, text=True)
        assert out.returncode == 0, out.stderr
        cls.prompts = prompts(cls.model)

    def serve(self, **env):
        self.stop_exact()  # one server at a time runs on a data folder
        server = Server("--model", self.model["name"], data=self.data, env={"CARREL_SERVER_TIMEOUT_SECONDS": "600", **env})
        self.addCleanup(server.stop)
        server.key = server.key or server.cli("key", "create")["key"]
        return server

    @classmethod
    def exact_server(cls):
        """One server with the exact ops for the tests in a row that ask it: to load the weights takes longer than most questions."""
        if cls.exact is None:
            cls.exact = Server("--model", cls.model["name"], data=cls.data, env={"CARREL_SERVER_TIMEOUT_SECONDS": "600", "CARREL_DEVICES_OPS": "exact"})
            cls.exact.key = cls.exact.key or cls.exact.cli("key", "create")["key"]
        return cls.exact

    @classmethod
    def stop_exact(cls):
        server, cls.exact = cls.exact, None
        if server is not None:
            server.stop()

    def ask(self, server, path, **body):
        status, r = server.call(path, {"model": self.model["name"], "temperature": 0, **body}, timeout=300)
        self.assertEqual(status, 200, r)
        return r

    def test_golden(self):
        """Every prompt, text and template; `exact` within 0.001, `fast` within the limits of limits.json."""
        out = subprocess.run([BIN, "golden", self.model["golden"], "--models", self.model["file"], "--ops", "fast", "--localise", "--json"], capture_output=True, text=True)
        r = json.loads(out.stdout)
        (f,) = r["files"]
        print("golden {name}: worst {worst_over_bound:.3f} of its bound at {worst_at}; long prompt: KL {mean_kl:.5f}, same best token {top1:.4f}".format(**f), flush=True)
        self.assertEqual((out.returncode, r["passed"], f["failures"], f.get("skipped")), (0, True, [], None))
        self.assertEqual(f["prompts"], 7)
        self.assertGreater(f["text_checks"], 150)

    def test_exact_path_over_https(self):
        server = self.exact_server()
        for name in ("fact", "code"):
            p = self.prompts[name]
            r = self.ask(server, "/v1/completions", prompt=p["ids"], max_tokens=len(p["greedy"]["ids"]), logprobs=1, ignore_eos=True)
            text = server.call("/v1/detokenize", {"tokens": p["greedy"]["ids"], "skip_special": True})[1]["text"]
            self.assertEqual(r["choices"][0]["text"], text, name)
            self.assertLess(abs(r["choices"][0]["logprobs"]["token_logprobs"][0] - (p["top20"][0][1] - p["logsumexp"])), 0.001, name)


class SmolLM2(RealModel, unittest.TestCase):
    model = SMOLLM2

    def test_exactly_it_knows_france(self):
        # In float32 the first word of this answer leads by 0.08, which is within what `fast` may differ by.
        server = self.exact_server()
        r = self.ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": "What is the capital of France?"}], max_tokens=20)
        self.assertIn("Paris", r["choices"][0]["message"]["content"])

    def test_it_answers_a_chat(self):
        # In float32 the first word leads by 0.66.
        server = self.serve()
        r = self.ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": "What is the capital of Germany?"}], max_tokens=20)
        self.assertIn("Berlin", r["choices"][0]["message"]["content"])
        # Its special tokens are text in a user's mouth: the ids of a text hold none.
        with open(self.model["golden"] + "/tokens.json") as f:
            for s in json.load(f)["cases"][::5]:
                self.assertEqual(server.call("/v1/tokenize", {"text": s["text"]})[1]["tokens"], s["ids_plain"], s["text"])

    def test_sampled_verification_finds_what_the_sample_missed(self):
        # One piece in sixteen is drawn at start. When the draw holds the damaged one, the start itself must refuse it by name; then another copy
        # is tried, since it is the pass in the background that has to be seen.
        for _ in range(6):
            data = self.damaged_copy()
            try:
                server = Server("--model", "smol", data=data, env={"CARREL_MODEL_VERIFY": "sampled"})
            except RuntimeError as e:
                self.assertRegex(str(e), r"tensor '[^']+' is damaged")
                shutil.rmtree(data)
                continue
            deadline = time.time() + 60
            while server.request("GET", "/readyz", key=None)[0] == 200 and time.time() < deadline:
                time.sleep(0.2)
            status, _, body = server.request("GET", "/readyz", key=None)
            server.stop()
            self.assertEqual((status, "model_damaged" in body.decode()), (503, True))
            code = subprocess.run([BIN, "serve", "--data", data, "--listen", "127.0.0.1:0", "--model", "smol"], capture_output=True, text=True, timeout=60)
            shutil.rmtree(data)
            self.assertNotEqual(code.returncode, 0)
            self.assertIn("damaged", code.stderr)
            return
        self.fail("the pass in the background was never seen at work")

    def damaged_copy(self):
        """The imported model with one bit of its weights changed, in a data folder of its own."""
        data = tempfile.mkdtemp(prefix="carrel-damaged-")
        shutil.copytree(self.data, data, dirs_exist_ok=True)
        entry = [d for d in os.listdir(data + "/models") if len(d) == 64][0]
        packed = os.path.join(data, "models", entry, "weights.bin")
        with open(packed, "r+b") as f:
            f.seek(int(os.path.getsize(packed) * 0.7))
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 1]))
        return data


class Gemma(RealModel, unittest.TestCase):
    model = GEMMA

    def test_a_chat_without_a_template_is_refused_with_the_way_out(self):
        server = self.exact_server()
        status, r = server.call("/v1/chat/completions", {"model": "gemma", "messages": [{"role": "user", "content": "Hello"}]})
        self.assertEqual(status, 400, r)
        self.assertEqual(r["error"]["type"], "invalid_request_error")
        self.assertRegex(r["error"]["message"], "no chat template.*model.chat_template.*/v1/completions")
        r = self.ask(server, "/v1/completions", prompt="The capital of France is", max_tokens=1)
        self.assertEqual(r["choices"][0]["text"], " the")

    def test_template_of_the_configuration_and_prefix_reuse(self):
        """A 2,000-token prompt, then the same with another question: cached = nominal, and the bits equal a run with reuse off."""
        server = self.serve(CARREL_MODEL_CHAT_TEMPLATE=os.path.join(os.path.dirname(__file__), "gemma_turns.jinja"))
        r = server.call("/v1/tokenize", {"messages": [{"role": "user", "content": "Name three colours."}]})[1]
        self.assertEqual(r["tokens"], self.prompts["turns"]["ids"])

        page = self.prompts["long"]["text"]

        def ask(question, **extra):
            messages = [{"role": "user", "content": f"{page} Once more, for whoever was asleep: {page} And again: {page[:700]} {question}"}]
            return self.ask(server, "/v1/chat/completions", messages=messages, max_tokens=8, logprobs=True, top_logprobs=5, **extra)

        first = ask("What is the key called?")
        self.assertGreater(first["usage"]["prompt_tokens"], 1990)
        second = ask("Where does the gate key hang?")
        cold = ask("Where does the gate key hang?", carrel={"reuse": False, "store": False})
        u = second["usage"]
        self.assertEqual(u["prompt_tokens_details"]["cached_tokens"], u["carrel"]["nominal"])
        self.assertEqual(u["carrel"]["nominal"], u["carrel"]["effective"])
        self.assertGreater(u["carrel"]["effective"], u["prompt_tokens"] - 2 * 64)
        self.assertEqual(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(second["choices"], cold["choices"])  # text and every logprob


if __name__ == "__main__":
    unittest.main()
