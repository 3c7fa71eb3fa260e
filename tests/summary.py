"""Adds up what tests/all ran, and prints what was skipped and the closing line.

It runs nothing: it reads nextest's JUnit report, the output of the doc tests, and the reasons for
which something failed or was skipped outside any test. A test that passed after printing
`SKIP <test>: <what is missing>` counts as skipped.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

# Libtest may have begun the line with the test's name.
SKIP = re.compile(r"^(?:test \S+ \.\.\. )?SKIP (\S+): (.*)$", re.MULTILINE)
DOC = re.compile(r"^test result: .* (\d+) passed; (\d+) failed; (\d+) ignored;", re.MULTILINE)


def main(report: Path, doc: Path, failures: Path, skips: Path) -> int:
    passed, skipped = 0, 0
    failed = len(failures.read_text().splitlines())
    missing: dict[str, list[str]] = {}
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else []
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
    for counts in DOC.findall(doc.read_text()):
        passed, failed = passed + int(counts[0]), failed + int(counts[1])
        skipped += int(counts[2])

    print()
    for what, tests in sorted(missing.items()):
        print(f"missing: {what}: skipped {', '.join(sorted(tests))}")
    for line in failures.read_text().splitlines():
        print(f"failed: {line}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
