"""pip-audit on every pinned version, and what came of it in a sentence.

Ends with 0 if no known vulnerability was found, 1 if there are some, and 2 if too little could be looked up to tell:
pip-audit itself counts what it could not look up as sound.
"""

import json
import subprocess
import sys
from typing import Any

COMMAND = ("-m", "pip_audit", "--requirement", "constraints.txt", "--no-deps", "--disable-pip")
OPTIONS = ("--format", "json", "--progress-spinner", "off")


def verdict(report: dict[str, Any]) -> tuple[str, int]:
    """The sentence, and the exit code, for pip-audit's own report."""
    packages = report["dependencies"]
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    bad = {f"{one['name']} {one['version']}": [v["id"] for v in one["vulns"]] for one in packages if one.get("vulns")}
    left = f"; {len(unknown)} of {len(packages)} could not be looked up: {', '.join(unknown)}" if unknown else ""
    if bad:
        return "known vulnerabilities: " + ", ".join(f"{k} ({', '.join(v)})" for k, v in bad.items()) + left, 1
    if 2 * len(unknown) > len(packages):
        return f"not audited: {len(unknown)} of {len(packages)} packages could not be looked up over this network", 2
    return "no known vulnerabilities" + left, 0


def main() -> int:
    done = subprocess.run([sys.executable, *COMMAND, *OPTIONS], capture_output=True, text=True, check=False)
    try:
        sentence, code = verdict(json.loads(done.stdout))
    except ValueError:  # no report
        sys.stderr.write(done.stderr)
        sentence, code = "not audited: pip-audit gave no report; does the network allow it?", 2
    print(sentence)
    return code


if __name__ == "__main__":
    sys.exit(main())
