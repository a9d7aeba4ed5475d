"""What programs say of themselves: GoogleTest's lines, and the JSON lines of bench/device_bench."""
import json
import re

RUN = re.compile(r"\[ RUN      \] (\S+)$")
END = re.compile(r"\[(       OK |  FAILED  |  SKIPPED )\] (\S+?)(?:, where .*)? \(\d+ ms\)$")
LINES_KEPT = 12  # of what a failed case printed


class TestCases:
    """Reads the lines of a GoogleTest program; knows which case was running when they stopped."""

    def __init__(self):
        self.cases: list[dict] = []
        self.running: dict | None = None

    def line(self, text: str) -> dict | None:
        """The case that ends with this line."""
        if match := RUN.search(text):
            self.running = {"case": match[1], "ok": False, "text": []}
            return None
        if match := END.search(text):
            case = self.running or {"case": match[2], "ok": False, "text": []}
            case["ok"] = match[1] == "       OK "
            if match[1] == "  SKIPPED ":
                case["problem"] = "skipped, which is not passed"
            return self.finish(case)
        if self.running is not None:
            self.running["text"].append(text)
        return None

    def finish(self, case: dict, problem: str | None = None) -> dict:
        said = [line for line in case.pop("text") if line.strip()][:LINES_KEPT]
        if not case["ok"]:
            case["problem"] = "\n".join(([problem or case.get("problem", "")] + said)).strip()
        self.cases.append(case)
        self.running = None
        return case

    def stop(self, problem: str) -> dict | None:
        """The program ended, or was ended, inside of a case."""
        return self.finish(self.running, problem) if self.running else None


def bench_line(text: str) -> dict | None:
    """A line of device_bench --json; None for anything else it may print."""
    if not text.startswith("{"):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def listed_cases(listing: list[str]) -> list[str]:
    """Full names from --gtest_list_tests."""
    names, suite = [], ""
    for line in listing:
        line = line.split("#")[0].rstrip()
        if line.startswith("  "):
            names.append(suite + line.strip())
        elif line.endswith("."):
            suite = line
    return names
