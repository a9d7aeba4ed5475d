#!/usr/bin/env python3
"""Reads CTest's JUnit report: prints how many tests passed, how many did not and how many skipped
themselves, and writes the names of the latter two, with the end of what they printed, to a file."""

import argparse
import xml.etree.ElementTree as xml

LINES_KEPT = 40


def skipped_itself(case: xml.Element) -> bool:
    """A test that ran and found that this machine does not permit it; not one that did not start."""
    mark = case.find("skipped")
    return mark is not None and mark.get("message") == "SKIP_REGULAR_EXPRESSION_MATCHED"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report")
    parser.add_argument("--failures", required=True, help="file to write")
    arguments = parser.parse_args()

    cases = list(xml.parse(arguments.report).getroot().iter("testcase"))
    skipped = [case for case in cases if skipped_itself(case)]
    bad = [case for case in cases if case.get("status") != "run" and case not in skipped]
    with open(arguments.failures, "w", encoding="utf-8") as file:
        for case in skipped:
            reason = (case.findtext("system-out") or "").partition("Skipped\n")[2].partition("\n")[0]
            file.write(f"skipped: {case.get('name')} ({reason})\n")
        for case in bad:
            printed = (case.findtext("system-out") or "").splitlines()
            file.write(f"did not pass: {case.get('name')} ({case.get('status')})\n")
            file.writelines(f"  | {line}\n" for line in printed[-LINES_KEPT:])
    print(len(cases) - len(bad) - len(skipped), len(bad), len(skipped))


if __name__ == "__main__":
    main()
