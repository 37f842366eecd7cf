"""What `make` installs is pinned."""

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.audit import verdict

ROOT = Path(__file__).parents[1]


def required(name: str, extras: tuple[str, ...], seen: set[str]) -> set[str]:
    """Names of everything installed that `name` needs."""
    try:
        found = distribution(name)
    except PackageNotFoundError:  # of another platform, or an extra that is not installed
        return seen
    for line in found.requires or []:
        requirement = Requirement(line)
        wanted = requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in ("", *extras))
        key = canonicalize_name(requirement.name)
        if wanted and key not in seen:
            seen.add(key)
            required(key, tuple(requirement.extras), seen)
    return seen


def test_every_package_that_is_installed_has_one_version() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    assert all(re.fullmatch(r"[\w.]+", version) for version in pins.values())
    names = {canonicalize_name(name) for name in pins}
    names.add("jointembed")  # whose extras name each other
    assert required("jointembed", ("dev", "parquet", "benchmarks", "audit"), set()) - names == set()


def test_make_installs_under_the_constraints_only() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^INSTALL := .*--constraint constraints\.txt$", makefile, re.MULTILINE)
    lines = [line for line in makefile.splitlines() if re.search(r"pip install|\$\(INSTALL\)", line)]
    assert all("--editable" not in line or "--no-build-isolation" in line for line in lines)
    assert all(line.startswith(("INSTALL :=", "\t$(INSTALL)")) for line in lines)


def test_an_audit_that_looked_nothing_up_is_no_all_clear() -> None:
    sound, unknown = {"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}
    bad = {"name": "c", "version": "2", "vulns": [{"id": "X-1"}, {"id": "X-2"}]}
    assert verdict({"dependencies": [sound, sound]}) == ("no known vulnerabilities", 0)
    assert verdict({"dependencies": [sound, unknown]})[1] == 0
    sentence = "not audited: 2 of 3 packages could not be looked up over this network"
    assert verdict({"dependencies": [sound, unknown, unknown]}) == (sentence, 2)
    found, code = verdict({"dependencies": [bad, unknown, unknown]})
    assert code == 1
    assert found.startswith("known vulnerabilities: c 2 (X-1, X-2); 2 of 3 could not be looked up: b, b")
