"""State below the device, from server to server: what is written behind, found again after a restart, and by nobody else."""
import os
import shutil
import subprocess
import tempfile
import time
import unittest

from harness import BIN, PATIENCE, Server

FACTS = open("docs/examples/house.txt").read().strip()

class DiskTier(unittest.TestCase):
    """What a server knew is known by the next one on the same data folder, and by nobody else."""
    SMALL = {"CARREL_CACHE_MAX_SIZE_GB": "0.02", "CARREL_MODEL_MAX_SEQUENCE_LENGTH": "1024", "CARREL_CACHE_OFFLOAD_ENABLE": "true", "CARREL_CACHE_OFFLOAD_HOST_MEMORY_SIZE": "1MB",
             "CARREL_CACHE_OFFLOAD_DISK_SIZE": "64MB"}

    def setUp(self):
        self.data = tempfile.mkdtemp(prefix="carrel-disk-")
        self.addCleanup(shutil.rmtree, self.data, True)

    def start(self, **env):
        server = Server(env={**self.SMALL, **env}, data=self.data)
        self.addCleanup(lambda: server.process.poll() is None and server.process.kill())
        server.key = server.key or self.key
        self.key = server.key
        return server

    def ask(self, server, i, key="own"):
        body = {"model": "demo", "messages": [{"role": "user", "content": f"Text {i}. " + FACTS}], "temperature": 0, "max_tokens": 2, "logprobs": True}
        status, r = server.call("/v1/chat/completions", body, key=key)
        self.assertEqual(status, 200, r)
        return r["choices"], r["usage"]["carrel"]

    def stored(self, server, n):
        end = time.monotonic() + 30 * PATIENCE
        while server.metric("carrel_offloaded_extents_total", tier="disk") < n and time.monotonic() < end:
            time.sleep(0.1)
        self.assertGreaterEqual(server.metric("carrel_offloaded_extents_total", tier="disk"), n)

    def test_a_restart_keeps_the_hits_of_each_tenant(self):
        first = self.start()
        first.cli("tenant", "create", "other")
        other = first.cli("key", "create", "--tenant", "other")["key"]
        cold = [self.ask(first, i)[0] for i in range(8)]
        self.assertEqual(self.ask(first, 0, key=other)[0], cold[0])
        first.stop()  # SIGTERM writes what is due

        second = self.start()
        restored = 0
        for i in range(8):
            answer, told = self.ask(second, i)
            self.assertEqual(answer, cold[i])
            self.assertGreater(told["nominal"], 0)
            self.assertIn(told["restored"], (0, told["nominal"]), told)  # all or nothing
            restored += told["restored"] > 0
        self.assertGreater(restored, 4)  # the rest looked quicker to compute
        self.assertGreater(second.metric("carrel_restored_records_total", tier="disk"), 0)
        self.assertGreater(second.metric("carrel_restore_bytes_total", tier="disk"), 0)
        self.assertEqual(second.metric("carrel_state_restore_failures_total"), 0)
        verify = subprocess.run([BIN, "cache", "verify", "--url", second.url, "--ca", second.ca, "--key", second.cli("key", "create", "--scope", "admin")["key"]], capture_output=True, text=True)
        self.assertEqual(verify.returncode, 0, verify.stdout + verify.stderr)
        self.assertRegex(verify.stdout, r"disk: [1-9]\d* extents read, 0 damaged and taken out of use, 0 not read")
        fresh = second.cli("key", "create", "--tenant", "other")["key"]
        self.assertEqual(self.ask(second, 1, key=fresh)[1]["nominal"], 0)  # known to the first tenant alone (case c1)
        self.assertGreater(self.ask(second, 0, key=fresh)[1]["restored"], 0)
        admin = second.cli("key", "create", "--scope", "admin")["key"]
        status, gone = second.call("/admin/v1/cache/purge", {"tenant": "default"}, key=admin)
        self.assertEqual(status, 200, gone)
        self.assertGreater(gone["dropped_records"], 0)
        self.assertEqual(self.ask(second, 3)[1]["nominal"], 0)
        second.stop()

        third = self.start()  # what was purged stays gone, and the other tenant's is there
        self.assertEqual((self.ask(third, 5)[0], self.ask(third, 6)[1]["nominal"]), (cold[5], 0))
        fresh = third.cli("key", "create", "--tenant", "other")["key"]
        self.assertGreater(self.ask(third, 0, key=fresh)[1]["restored"], 0)
        third.stop()

    def test_killed_at_work_it_loses_nothing_but_what_was_due(self):
        first = self.start()
        cold = [self.ask(first, i)[0] for i in range(6)]
        self.stored(first, 6)
        first.process.kill()
        first.process.wait()
        first.log.close()
        second = self.start()
        told = []
        for i in range(6):
            answer, t = self.ask(second, i)
            self.assertEqual(answer, cold[i])
            told.append(t)
        self.assertGreater(sum(t["restored"] for t in told), 0)
        second.stop()

    def test_other_numerics_or_weights_see_nothing(self):
        first = self.start()
        self.ask(first, 0)
        first.stop()
        second = self.start(CARREL_DEVICES_OPS="exact")
        self.assertEqual(self.ask(second, 0)[1]["nominal"], 0)
        second.stop()
        third = self.start(CARREL_MODEL_KV_DTYPE="f32")
        self.assertEqual(self.ask(third, 0)[1]["nominal"], 0)
        third.stop()
        last = self.start()
        self.assertGreater(self.ask(last, 0)[1]["restored"], 0)
        last.stop()

    def test_damage_on_disk_is_found_and_computed_again(self):
        first = self.start()
        cold = [self.ask(first, i)[0] for i in range(4)]
        first.stop()
        folder = os.path.join(self.data, "extents")
        flipped = 0
        for name in os.listdir(folder):
            if not name.endswith(".ext"):
                continue
            with open(os.path.join(folder, name), "r+b") as f:
                size = os.fstat(f.fileno()).st_size
                for at in range(4096 + 2000, size, 4096):  # behind the segment's own header
                    f.seek(at)
                    b = f.read(1)
                    f.seek(at)
                    f.write(bytes([b[0] ^ 4]))
                    flipped += 1
        self.assertGreater(flipped, 4)
        second = self.start()
        for i in range(4):
            answer, told = self.ask(second, i)
            self.assertEqual(answer, cold[i])
            self.assertEqual(told["restored"], 0)
        self.assertGreater(second.metric("carrel_state_restore_failures_total") + second.metric("carrel_restores_total", result="failed"), 0)
        for i in range(4):
            self.assertEqual(self.ask(second, i)[0], cold[i])
        second.stop()


if __name__ == "__main__":
    unittest.main()
