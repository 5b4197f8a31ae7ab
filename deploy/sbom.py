"""`make sbom`: the bills of materials as CycloneDX 1.6, and the page that lists licences.

`python -m deploy.sbom FILE` writes the bill, with `--slim` that of the slim image; `--page` writes
docs/reference/licences.md anew.
"""

import argparse
import uuid
from importlib.metadata import version
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from deploy.dependencies import ROOT, Dependency, dependencies

PAGE = ROOT / "docs/reference/licences.md"
_HEAD = """\
# Licences

Headrace is under the Apache License 2.0. This is what it is made of, from the locks; `make sbom`
writes the same as a bill of materials (CycloneDX 1.6) with all hashes, and one of the slim image.
This page is written by `python -m deploy.sbom --page`.

What is marked *Spark* is not in the slim image. What is marked *development* is for the embedded
servers and the benchmarks, and in no image.

| what | version | licence |
| --- | --- | --- |
"""
_NOTES = {"slim": "", "spark": " (*Spark*)", None: " (*development*)"}


def bill(found: list[Dependency]) -> str:
    """The bill of materials as JSON; the same for the same locks, but for the time."""
    licences = LicenseFactory()
    own = version("headrace")
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_OID, repr((own, found))))
    bom.metadata.component = root = Component(
        name="headrace",
        version=own,
        type=ComponentType.APPLICATION,
        licenses=[licences.make_from_string("Apache-2.0")],
        bom_ref="headrace",
    )
    parts = {_url(each): _component(each, licences) for each in found}
    bom.components.update(parts.values())
    bom.register_dependency(root, parts.values())
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def page(found: list[Dependency]) -> str:
    """The page of licences."""
    lines = []
    for each in found:
        name = f"{each.group}:{each.name}" if each.group else each.name
        note = _NOTES[each.image]
        lines.append(f"| `{name}`{note} | {each.version} | {each.licence} |\n")
    return _HEAD + "".join(dict.fromkeys(lines))  # a jar may be in two sets


def _component(each: Dependency, licences: LicenseFactory) -> Component:
    url = _url(each)
    return Component(
        name=each.name,
        group=each.group or None,
        version=each.version,
        type=ComponentType.LIBRARY,
        scope=ComponentScope.REQUIRED if each.image else ComponentScope.EXCLUDED,
        licenses=[licences.make_from_string(each.licence)],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in each.hashes],
        purl=url,
        bom_ref=str(url),
    )


def _url(each: Dependency) -> PackageURL:
    kind = "pypi" if each.kind == "python" else "maven"
    return PackageURL(kind, each.group or None, each.name, each.version)


def main() -> None:
    """Write what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m deploy.sbom", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="where the bill of materials goes")
    parser.add_argument("--slim", action="store_true", help="of the slim image alone")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name} anew")
    given = parser.parse_args()
    found = dependencies()
    if given.page:
        PAGE.write_text(page(found), encoding="utf-8")
    if given.file is not None:
        parts = [each for each in found if each.image == "slim"] if given.slim else found
        given.file.write_text(bill(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
