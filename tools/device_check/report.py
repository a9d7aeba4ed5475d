"""The results of launch/device_check, on the terminal and in files that are whole at every moment.

device_check.json is written anew after every result, device_check.txt and device_check.log grow; so
whatever ends the check, what it had found until then is there.
"""
import json
import os
import threading
import time
from pathlib import Path


class Report:
    def __init__(self, directory: Path | None, about: dict):
        self.begin = time.monotonic()
        self.directory = directory
        self.lock = threading.RLock()
        self.result = {"status": "unfinished", "seconds": 0.0, "failed_first": None, **about,
                       "parts": {}}
        self.text = self.log = None
        if directory:
            directory.mkdir(parents=True, exist_ok=True)
            self.text = open(directory / "device_check.txt", "w", encoding="utf-8")
            self.log = open(directory / "device_check.log", "w", encoding="utf-8")
            self.save()

    def save(self) -> None:
        with self.lock:
            self.result["seconds"] = round(time.monotonic() - self.begin, 1)
            if self.directory:
                half = self.directory / "device_check.json.tmp"
                half.write_text(json.dumps(self.result, indent=1), encoding="utf-8")
                os.replace(half, self.directory / "device_check.json")

    def say(self, line: str = "") -> None:
        with self.lock:
            print(line, flush=True)
            if self.text:
                print(line, file=self.text, flush=True)

    def heard(self, program: str, line: str) -> None:
        """What a program printed, word for word."""
        if self.log:
            with self.lock:
                print(f"{program}: {line}", file=self.log, flush=True)

    def failed(self, part: str, what: str, problem: str) -> None:
        with self.lock:
            first = self.result["failed_first"] is None
            if first:
                self.result["failed_first"] = {"part": part, "what": what, "problem": problem}
            label = "FAILED FIRST" if first else "FAILED"
            self.say(f"{label}: {part}: {what}")
            for line in problem.splitlines():
                self.say(f"    {line}")

    def finish(self) -> bool:
        """The last lines, with what failed first at their head. True where all passed."""
        parts = self.result["parts"]
        bad = [name for name, part in parts.items() if part["status"] != "passed"]
        self.result["status"] = "failed" if bad or self.result["failed_first"] else "passed"
        self.save()
        self.say()
        if first := self.result["failed_first"]:
            self.say(f"FAILED FIRST: {first['part']}: {first['what']}")
            for line in first["problem"].splitlines():
                self.say(f"    {line}")
        for name, part in parts.items():
            problem = f": {part['problem'].splitlines()[0]}" if part.get("problem") else ""
            self.say(f"{name:<12} {part['status']:<8} {part['passed']} of "
                     f"{part['passed'] + part['failed']} passed, {part['seconds']:.1f} s{problem}")
        if self.result.get("emulated"):
            self.say("emulated: times mean nothing")
        self.say(f"{len(parts) - len(bad)} parts passed, {len(bad)} failed, "
                 f"{self.result['seconds']:.0f} s")
        if self.directory:
            self.say(f"results: {self.directory}/device_check.json, .txt and .log")
        return self.result["status"] == "passed"
