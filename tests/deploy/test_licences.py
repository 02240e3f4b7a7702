"""Every package that a server runs with has a licence that permits use, change and distribution of the product."""

import re
import subprocess
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent.parent
ALLOWED = re.compile(
    r"(MIT|MIT-0|MIT-CMU|MIT License|BSD|BSD License|3-Clause BSD License|BSD-[23]-Clause|0BSD|Apache[- ]2\.0|"
    r"Apache Software License|ISC|ISC License \(ISCL\)|Zlib|CC0-1\.0|PSF-2\.0|Python Software Foundation License|"
    r"Unlicense|MPL-2\.0|Mozilla Public License 2\.0 \(MPL 2\.0\))"
)
"""Permissive licences, and the MPL, which covers only changes of its own files."""
READ_BY_HAND = {
    "py-rust-stemmers": "its metadata name no licence; the LICENSE in the wheel is the MIT licence",
    "pypdfium2": "BSD-3-Clause and Apache-2.0; the licences of PDFium's parts are in the wheel and permissive",
}


def stated_licence(name: str) -> str:
    """Return the licence that a distribution states: its expression, its classifiers, or its text's first line."""
    package = metadata(name)
    classifiers = [
        classifier.rpartition(" :: ")[2]
        for classifier in package.get_all("Classifier") or ()
        if "License ::" in classifier
    ]
    expressions, licences = package.get_all("License-Expression") or [], package.get_all("License") or []
    texts = [*expressions, " AND ".join(classifiers), *licences]
    return next((text.strip().splitlines()[0] for text in texts if text.strip()), "")


def is_allowed(licence: str) -> bool:
    parts = re.split(r"\s+(?:AND|OR)\s+", licence.replace("(ISCL)", "ISCL").replace("(MPL 2.0)", "MPL"))
    names = [part.strip("() ").replace("ISCL", "(ISCL)").replace(" MPL", " (MPL 2.0)") for part in parts]
    return all(ALLOWED.fullmatch(name) for name in names)


def test_every_package_of_a_server_has_a_permissive_licence() -> None:
    lock = subprocess.run([ROOT / "scripts" / "runtime_lock"], check=True, capture_output=True, text=True).stdout
    requirements = [Requirement(line.rstrip(" \\")) for line in lock.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert len(requirements) > 80
    refusals: list[str] = []
    for requirement in requirements:
        if requirement.name in READ_BY_HAND or (requirement.marker is not None and not requirement.marker.evaluate()):
            continue
        try:
            licence = stated_licence(requirement.name)
        except PackageNotFoundError:
            refusals.append(f"{requirement.name} is in requirements.lock and not installed")
            continue
        if not is_allowed(licence):
            refusals.append(f"{requirement.name}: {licence or 'no licence stated'}")
    assert refusals == []


def test_a_copyleft_or_unknown_licence_is_refused() -> None:
    assert not any(
        map(is_allowed, ["", "GPL-3.0-only", "MIT AND AGPL-3.0-or-later", "Proprietary", "BSD-3-Clause-Attribution"])
    )
    assert all(map(is_allowed, ["MIT", "MPL-2.0 AND (Apache-2.0 OR MIT)", "ISC License (ISCL)"]))


def test_the_bill_of_materials_names_every_file_of_others_in_the_page() -> None:
    vendor = ROOT / "agentic_rag" / "server" / "web" / "vendor"
    shipped = {path.name for path in vendor.iterdir() if path.suffix != ".txt"}
    named_files = set(re.findall(r'\("([\w.-]+)", "pkg:', (ROOT / "scripts" / "sbom").read_text()))
    assert named_files == shipped
