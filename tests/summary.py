"""Adds up what tests/all ran: what took how long, what was skipped, and the closing line.

It runs nothing: it reads nextest's JUnit report, the seconds that each part took, and the reasons
for which something failed or was skipped outside any test. A test that passed after printing
`SKIP <test>: <what is missing>` counts as skipped.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

# Libtest may have begun the line with the test's name.
SKIP = re.compile(r"^(?:test \S+ \.\.\. )?SKIP (\S+): (.*)$", re.MULTILINE)
# The kinds of tests by the first part of their names; all others belong to the core.
KINDS = ("plane", "aws", "end_to_end", "sim")
SLOWEST = 10


def times(cases: list[ElementTree.Element], parts: str) -> None:
    """Prints the time of each part, of each kind of test, and the slowest tests."""
    kinds = dict.fromkeys((*KINDS, "core"), 0.0)
    seconds = [(float(case.get("time") or 0), case.get("name") or "") for case in cases]
    for took, name in seconds:
        kind = name.split("::")[0]
        kinds[kind if kind in kinds else "core"] += took
    print("seconds by part, of which some run side by side:")
    for line in parts.splitlines():
        part, took = line.split()
        print(f"{float(took):8.0f}  {part}")
    print("seconds by kind of test, each test counted by itself:")
    for kind, took in kinds.items():
        print(f"{took:8.0f}  {kind}")
    print(f"the {SLOWEST} slowest tests:")
    for took, name in sorted(seconds, reverse=True)[:SLOWEST]:
        print(f"{took:8.1f}  {name}")


def main(report: Path, parts: Path, failures: Path, skips: Path) -> int:
    passed, skipped = 0, 0
    failed = len(failures.read_text().splitlines())
    missing: dict[str, list[str]] = {}
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    for case in cases:
        texts = [case.findtext(tag) or "" for tag in ("system-out", "system-err")]
        skip = SKIP.search("\n".join(texts))
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif skip:
            skipped += 1
            missing.setdefault(skip[2].strip(), []).append(skip[1])
        else:
            passed += 1
    for name, what in SKIP.findall(skips.read_text()):
        skipped += 1
        missing.setdefault(what.strip(), []).append(name)

    print()
    times(cases, parts.read_text())
    for what, tests in sorted(missing.items()):
        print(f"missing: {what}: skipped {', '.join(sorted(tests))}")
    for line in failures.read_text().splitlines():
        print(f"failed: {line}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
