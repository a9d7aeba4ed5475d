"""Runs one program under a time limit and hands its lines over as they come.

A program that does not end in time is killed with everything it started. Meaning is left to cases.py.
"""
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

GRACE_SECONDS = 2  # between asking a program to end and ending it


def session_members(leader: int) -> list[int]:
    """Processes that `leader` started: mpirun's ranks have process groups of their own."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z" and int(fields[3]) == leader:
                members.append(int(entry.name))
    return members


def end_session(process: subprocess.Popen) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for member in session_members(process.pid):
            try:
                os.kill(member, number)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + GRACE_SECONDS
        while session_members(process.pid) and time.monotonic() < deadline:
            process.poll()
            time.sleep(0.05)


class Running:
    """The programs that run now, so that they can be ended with the script."""

    def __init__(self):
        self.processes: set[subprocess.Popen] = set()
        self.lock = threading.Lock()

    def end_all(self) -> None:
        with self.lock:
            processes = list(self.processes)
        for process in processes:
            end_session(process)

    def run(self, command, environment, deadline: float, on_line) -> int | None:
        """Its exit status, negative for a signal; None where it had to be killed."""
        process = subprocess.Popen([str(word) for word in command], env=environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        with self.lock:
            self.processes.add(process)

        def read():
            for line in process.stdout:
                on_line(line.decode(errors="replace").rstrip("\n"))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        killed = False
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            killed = True
        # Also what a program that ended left behind: it would hold the pipe open.
        end_session(process)
        process.wait()
        reader.join(timeout=GRACE_SECONDS)
        with self.lock:
            self.processes.discard(process)
        return None if killed else process.returncode
