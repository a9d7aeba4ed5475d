#!/usr/bin/env python3
"""Reads CTest's JUnit report: prints how many tests passed and how many did not, and writes the
names of those that did not, with the end of what they printed, to a file."""

import argparse
import xml.etree.ElementTree as xml

LINES_KEPT = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report")
    parser.add_argument("--failures", required=True, help="file to write")
    arguments = parser.parse_args()

    cases = list(xml.parse(arguments.report).getroot().iter("testcase"))
    bad = [case for case in cases if case.get("status") != "run"]  # failed, or not run at all
    with open(arguments.failures, "w", encoding="utf-8") as file:
        for case in bad:
            printed = (case.findtext("system-out") or "").splitlines()
            file.write(f"did not pass: {case.get('name')} ({case.get('status')})\n")
            file.writelines(f"  | {line}\n" for line in printed[-LINES_KEPT:])
    print(len(cases) - len(bad), len(bad))


if __name__ == "__main__":
    main()
