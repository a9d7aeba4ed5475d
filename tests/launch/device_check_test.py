#!/usr/bin/env python3
"""launch/device_check with programs that are not what they seem: failing, hanging, dying, absent.

Its parts on the emulated device are run by the test beside this one; here the programs are scripts.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from device_check import libraries, parts  # noqa: E402

PASSES = """
echo '[ RUN      ] Suite.Passes'
echo '[       OK ] Suite.Passes (1 ms)'
"""
FAILS = """
echo '[ RUN      ] Suite.Fails'
echo 'file.cpp:7: Failure'
echo '[  FAILED  ] Suite.Fails, where GetParam() = 3 (1 ms)'
exit 1
"""
BENCH = """
case "$1" in
  info) echo '{"device": "a script", "text": "a script"}' ;;
  *) echo '{"case": "'$1'/one", "ok": true, "text": "one", "tflops": 1.5}' ;;
esac
"""


def runs(pid: str) -> bool:
    """What ended may stay a zombie for a while: its parent is gone and the machine's init reaps when it will."""
    try:
        stat = Path(f"/proc/{pid.strip()}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class DeviceCheck(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="device_check_test_")
        self.addCleanup(self.folder.cleanup)
        self.build = Path(self.folder.name) / "build"
        self.out = Path(self.folder.name) / "out"
        for part in parts.PARTS:
            for job in part.jobs:
                self.program(job.program, BENCH if job.kind == "bench" else PASSES)

    def program(self, name, body):
        path = self.build / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}")
        path.chmod(0o755)

    def command(self, *arguments):
        return [ROOT / "launch/device_check", "--from", self.build, *arguments]

    def run_check(self, *arguments):
        result = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=120,
                                env={**os.environ, "OUT": str(self.out)})
        self.said = result.stdout + result.stderr
        return result.returncode

    def results(self):
        return json.loads((self.out / "device_check.json").read_text())

    def test_all_parts_pass_and_results_are_files(self):
        names = ["conformance", "ops", "step", "attention", "gemm", "train", "dualkv"]
        self.assertEqual(self.run_check(*names), 0, self.said)
        results = self.results()
        self.assertEqual(results["status"], "passed")
        self.assertEqual(results["device"]["device"], "a script")
        self.assertEqual(list(results["parts"]), names)
        self.assertEqual(results["parts"]["gemm"]["results"],
                         [{"case": "gemm/one", "ok": True, "tflops": 1.5}])
        self.assertIn("7 parts passed, 0 failed", (self.out / "device_check.txt").read_text())
        self.assertIn("Suite.Passes", (self.out / "device_check.log").read_text())

    def test_a_failing_part_does_not_stop_the_others(self):
        self.program("tests/rl/rl_cuda_test", FAILS)
        self.program(parts.BENCH, BENCH.replace('"ok": true', '"ok": false, "problem": "off"') + "exit 1")
        self.program(parts.BENCH, BENCH + '[ "$1" != gemm ] || { echo boom; exit 3; }')
        self.assertEqual(self.run_check("step", "gemm", "train"), 1)
        self.assertIn("FAILED FIRST: step: Suite.Fails", self.said)
        self.assertIn("file.cpp:7: Failure", self.said)
        self.assertIn("ended with status 3", self.said)
        self.assertIn("1 parts passed, 2 failed", self.said)
        # What failed first stands in front of the summary, not only far above it.
        self.assertIn("FAILED FIRST: step", self.said[self.said.rindex("train: passed"):])
        self.assertEqual(self.results()["failed_first"]["what"], "Suite.Fails")
        self.assertEqual(self.results()["parts"]["train"]["status"], "passed")

    def test_a_hanging_part_is_killed_with_what_it_started(self):
        child = Path(self.folder.name) / "child"
        self.program("tests/core/device_wrappers_test",
                     f"echo '[ RUN      ] Suite.Hangs'\ntrap '' TERM\n(trap '' TERM; sleep 300) &\n"
                     f"echo $! >{child}\nwait\nsleep 300\n")
        begin = time.monotonic()
        self.assertEqual(self.run_check("conformance", "step", "--patience", "0.14"), 1)
        self.assertLess(time.monotonic() - begin, 40)
        self.assertIn("FAILED FIRST: conformance: Suite.Hangs", self.said)
        self.assertIn("killed: it did not end within", self.said)
        self.assertEqual(self.results()["parts"]["step"]["status"], "passed")
        self.assertFalse(runs(child.read_text()))

    def test_what_follows_a_death_is_run_alone(self):
        self.program("tests/core/device_wrappers_test", """
case "$*" in
  *--gtest_list_tests*) printf 'Suite.\\n  Dies\\n  Follows\\n' ;;
  *Suite.Follows*) echo '[ RUN      ] Suite.Follows'; echo '[       OK ] Suite.Follows (1 ms)' ;;
  *) echo '[ RUN      ] Suite.Dies'; echo an error; kill -SEGV $$ ;;
esac
""")
        self.assertEqual(self.run_check("conformance"), 1)
        self.assertIn("conformance: Suite.Dies", self.said)
        self.assertIn("ended by SIGSEGV", self.said)
        part = self.results()["parts"]["conformance"]
        self.assertEqual((part["passed"], part["failed"]), (1, 1))

    def test_skipped_is_not_passed_and_nothing_is_not_passed(self):
        self.program("tests/core/device_wrappers_test",
                     "echo '[ RUN      ] S.S'\necho '[  SKIPPED ] S.S (0 ms)'\n")
        self.program("tests/rl/rl_cuda_test", "exit 0")
        self.assertEqual(self.run_check("conformance", "step"), 1)
        self.assertIn("skipped, which is not passed", self.said)
        self.assertIn("no case ran", self.said)

    def test_what_is_not_built_is_said_and_the_rest_runs(self):
        (self.build / "tests/rl/rl_cuda_test").unlink()
        self.assertEqual(self.run_check("step", "gemm"), 1)
        self.assertIn("rl_cuda_test is not built. Run launch/device_check --build", self.said)
        self.assertEqual(self.results()["parts"]["gemm"]["status"], "passed")

    def test_a_missing_library_is_named_before_the_program_is_run(self):
        folder = Path(self.folder.name)
        (folder / "a.c").write_text("int gone(void) { return 0; }\n")
        (folder / "b.c").write_text("int gone(void); int main(void) { return gone(); }\n")
        target = self.build / "tests/rl/rl_cuda_test"
        target.unlink()
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libgone.so", folder / "a.c"], check=True)
        subprocess.run(["cc", "-o", target, folder / "b.c", f"-L{folder}", "-lgone"], check=True)
        self.assertEqual(self.run_check("step", "gemm"), 1)
        self.assertIn("needs libgone.so, which this machine does not have", self.said)
        self.assertIn("libgone.so", libraries.needed(target))

    def test_no_device_is_said_at_once(self):
        self.program(parts.BENCH, "echo 'FAILED: no device'; exit 1")
        self.assertEqual(self.run_check(), 1)
        self.assertIn("FAILED: no device", self.said)
        self.assertEqual(self.results()["parts"], {})

    def test_results_survive_a_kill(self):
        self.program("tests/rl/rl_cuda_test", PASSES + "sleep 60\n")
        process = subprocess.Popen(self.command("conformance", "step"), stdout=subprocess.DEVNULL,
                                   env={**os.environ, "OUT": str(self.out)})
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if self.results()["parts"]["step"]["passed"] == 1:
                    break
            except (OSError, KeyError):
                pass
            time.sleep(0.1)
        process.kill()
        process.wait()
        results = self.results()
        self.assertEqual(results["status"], "unfinished")
        self.assertEqual(results["parts"]["conformance"]["status"], "passed")
        self.assertEqual(results["parts"]["step"]["results"], [{"case": "Suite.Passes", "ok": True}])

    def test_an_interrupt_ends_what_runs_and_says_so(self):
        marker = Path(self.folder.name) / "pid"
        self.program("tests/rl/rl_cuda_test", f"echo $$ >{marker}\nsleep 60\n")
        process = subprocess.Popen(self.command("step"), stdout=subprocess.PIPE, text=True,
                                   env={**os.environ, "OUT": str(self.out)})
        while not (marker.exists() and marker.read_text().strip()):
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertIn("interrupted", said)
        self.assertFalse(runs(marker.read_text()))

    def test_lists_its_parts_and_refuses_others(self):
        self.assertEqual(self.run_check("--list"), 0)
        self.assertEqual([line.split()[0] for line in self.said.splitlines()],
                         [part.name for part in parts.PARTS])
        self.assertEqual(self.run_check("gem"), 2)
        self.assertIn("no part gem", self.said)

    def test_the_parts_fit_into_nine_minutes(self):
        self.assertLess(parts.TOTAL_SECONDS, 540)


if __name__ == "__main__":
    unittest.main()
