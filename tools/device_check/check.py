"""Runs the parts one after the other, each under its limit, and tells their results as they come."""
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import cases, libraries, parts, report, running

SHORTEST_SECONDS = 5  # a part that has less is not begun
LINES_OF_A_DEATH = 8  # of what a program printed last, where it died without a reason


@dataclass(frozen=True)
class Share:
    """A program of a part, or the cases of it that one of several processes takes."""
    job: parts.Job
    index: int = 0
    count: int = 1

    def environment(self) -> dict[str, str]:
        return {"GTEST_TOTAL_SHARDS": str(self.count), "GTEST_SHARD_INDEX": str(self.index)}


def how_it_ended(status: int | None, seconds: float) -> str:
    if status is None:
        return f"killed: it did not end within {seconds:.0f} s"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


class Check:
    def __init__(self, build: Path, packed: Path | None, seconds: float, patience: float,
                 wanted: list[parts.Part], told: report.Report):
        self.build, self.wanted, self.report, self.patience = build, wanted, told, patience
        self.deadline = time.monotonic() + seconds
        self.running = running.Running()
        self.cores = len(os.sched_getaffinity(0))
        programs = {build / job.program for part in wanted for job in part.jobs}
        programs.add(build / parts.BENCH)
        self.environment, self.lacking = libraries.environment_for(
            sorted(program for program in programs if program.exists()), packed)
        # Open MPI without a look for network cards, which takes every start a while.
        self.environment["OMPI_MCA_pml"] = "ob1"
        # Threads that wait do not take the cores from programs beside them.
        self.environment.setdefault("OMP_WAIT_POLICY", "passive")

    def run(self) -> bool:
        """True where everything passed."""
        if self.there_is_a_device():
            for part in self.wanted:
                self.run_part(part)
        return self.report.finish()

    def there_is_a_device(self) -> bool:
        """Notes what it is. Where it cannot be asked, the parts are tried all the same."""
        job = parts.bench("info")
        if problem := self.cannot_run(job):
            self.report.failed("device", "what it is was not asked", problem)
            return True
        said: list[str] = []
        status = self.running.run([self.build / job.program, *job.arguments, "--json"],
                                  self.environment, time.monotonic() + 60, said.append)
        for text in said:
            self.report.heard(job.program, text)
            line = cases.bench_line(text)
            if status == 0 and line:
                self.report.say(line["text"])
                if "device" in line:
                    self.report.result["device"] = {k: v for k, v in line.items() if k != "text"}
        if status != 0:
            why = [how_it_ended(status, 60), *said[-LINES_OF_A_DEATH:]]
            self.report.failed("device", "no part was run", "\n".join(why))
        return status == 0

    def cannot_run(self, job: parts.Job) -> str | None:
        """Why a program cannot even start."""
        program = self.build / job.program
        if not program.exists():
            return (f"{program} is not built. Run launch/device_check --build where nvcc is, or bring a "
                    "pack, which launch/device_check --pack makes there.")
        if missing := self.lacking.get(program):
            return (f"{job.program} needs {', '.join(missing)}, which this machine does not have. Install "
                    "them (launch/setup; the CUDA toolkit), or use a pack, which brings all but cuBLAS.")
        if job.kind == "ranks":
            mpirun = libraries.mpirun(self.environment)
            if mpirun is None:
                return "there is no mpirun here (two ranks need it). Install Open MPI, or use a pack."
            if missing := self.lacking.get(mpirun):
                return f"{mpirun} needs {', '.join(missing)}, which this machine does not have."
        return None

    def run_part(self, part: parts.Part) -> None:
        begin = time.monotonic()
        end = min(begin + part.limit * self.patience, self.deadline)
        result = {"status": "failed", "limit": part.limit, "seconds": 0.0, "passed": 0, "failed": 0,
                  "problem": None, "results": []}
        self.report.result["parts"][part.name] = result
        self.report.say(f"\n== {part.name}: {part.says}")
        if end - begin < SHORTEST_SECONDS:
            self.fail(part, "not run", "no time is left for it. Run this part alone.")
        else:
            shares = self.shares_of(part)
            # Checks run side by side; what is timed runs alone.
            timed = any(share.job.kind == "bench" for share in shares)
            with ThreadPoolExecutor(1 if timed else min(8, self.cores)) as pool:
                list(pool.map(lambda share: self.run_share(part, share, end), shares))
            if result["failed"] == 0 and result["passed"] == 0:
                self.fail(part, "nothing ran", "no case ran, so nothing is shown.")
        result["status"] = "passed" if result["failed"] == 0 else "failed"
        result["seconds"] = round(time.monotonic() - begin, 1)
        self.report.say(f"{part.name}: {result['status']}, {result['passed']} passed, "
                        f"{result['failed']} failed, {result['seconds']} s of {part.limit} s")
        self.report.save()

    def shares_of(self, part: parts.Part) -> list[Share]:
        count = max(1, min(4, self.cores // 4))
        return [Share(job, index, count if job.kind == "tests" else 1) for job in part.jobs
                for index in range(count if job.kind == "tests" else 1)]

    def fail(self, part: parts.Part, what: str, problem: str) -> None:
        with self.report.lock:
            result = self.report.result["parts"][part.name]
            result["failed"] += 1
            result["problem"] = result["problem"] or problem
            self.report.failed(part.name, what, problem)

    def note(self, part: parts.Part, case: dict) -> None:
        """A case that ended."""
        with self.report.lock:
            result = self.report.result["parts"][part.name]
            result["results"].append(case)
            if case["ok"]:
                result["passed"] += 1
            else:
                self.fail(part, case["case"], case.get("problem") or "failed")
            self.report.save()

    def command(self, job: parts.Job, filter_of_cases: str) -> list:
        command = [self.build / job.program, f"--gtest_filter={filter_of_cases}"]
        if job.kind == "ranks":
            command = [libraries.mpirun(self.environment), "--allow-run-as-root", "--oversubscribe",
                       "--bind-to", "none", "-np", job.ranks, *command]
        return command

    def run_share(self, part: parts.Part, share: Share, end: float) -> None:
        job = share.job
        if problem := self.cannot_run(job):
            if share.index == 0:
                self.fail(part, job.program, problem)
            return
        if job.kind == "bench":
            return self.run_bench(part, job, end)
        tests = cases.TestCases()
        environment = {**self.environment, **share.environment()}
        self.run_program(part, job, self.command(job, job.arguments[0]), environment, end, tests.line,
                         tests.stop)
        if job.kind == "tests" and not all(case["ok"] for case in tests.cases):
            self.run_alone(part, share, tests, end)

    def run_bench(self, part: parts.Part, job: parts.Job, end: float) -> None:
        def on_line(text: str) -> dict | None:
            line = cases.bench_line(text)
            if line is None:
                return None
            self.report.say(line.get("text", text))
            return {k: v for k, v in line.items() if k != "text"} if "case" in line else None

        seconds = max(1.0, end - time.monotonic() - 3)  # what it leaves out is better than a kill
        self.run_program(part, job, [self.build / job.program, *job.arguments, "--json", "--seconds",
                                     f"{seconds:.0f}"], self.environment, end, on_line)

    def run_program(self, part, job, command, environment, end, read, stop=lambda why: None) -> None:
        """Hands its lines to `read`, and notes the cases that this returns."""
        said: list[str] = []
        failed = []

        def on_line(text: str) -> None:
            self.report.heard(job.program, text)
            said.append(text)
            if case := read(text):
                if not case["ok"]:
                    failed.append(case)
                self.note(part, case)

        begin = time.monotonic()
        status = self.running.run(command, environment, end, on_line)
        if status == 0:
            return
        why = how_it_ended(status, end - begin)
        if cut_off := stop(why):
            self.note(part, cut_off)
        elif status is None or not failed:  # it told no reason itself
            last = [line for line in said if line.strip()][-LINES_OF_A_DEATH:]
            self.fail(part, job.program, "\n".join([why, *last]))

    def run_alone(self, part: parts.Part, share: Share, tests: cases.TestCases, end: float) -> None:
        """Cases that never ran, and those that failed after the first, in processes of their own.

        An error of a device stays with its process, so what fails after another proves nothing.
        """
        job = share.job
        listing: list[str] = []
        self.running.run([*self.command(job, job.arguments[0]), "--gtest_list_tests"],
                         self.environment, min(end, time.monotonic() + 30), listing.append)
        done = {case["case"]: case for case in tests.cases}
        failed = [name for name, case in done.items() if not case["ok"]]
        for place, name in enumerate(cases.listed_cases(listing)):
            again = name in failed[1:]
            if place % share.count != share.index or (name in done and not again):
                continue
            if time.monotonic() > end - SHORTEST_SECONDS:
                self.report.say(f"{part.name}: no time to run the other cases alone")
                return
            one = cases.TestCases()

            def on_line(text: str) -> None:
                self.report.heard(job.program, text)
                one.line(text)  # noqa: B023: read before the next one is made

            status = self.running.run(self.command(job, name), self.environment, end, on_line)
            one.stop(how_it_ended(status, end - time.monotonic()))
            passed = status == 0 and any(case["ok"] for case in one.cases)
            if again:
                done[name]["alone"] = "passed" if passed else "failed"
            elif one.cases:
                self.note(part, one.cases[0])
            else:
                self.note(part, {"case": name, "ok": False, "problem": "it did not run alone either"})
