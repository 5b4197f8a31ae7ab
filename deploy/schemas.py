"""Writes JSON schemas for kubeconform: schemas.py FOLDER swagger.json CRD.yaml...

Strict ones: a field that the API server would drop is refused.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

# One definition has a bare `=` among its words, which is a type of its own in YAML 1.1.
yaml.SafeLoader.add_constructor("tag:yaml.org,2002:value", lambda _, node: node.value)
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
EITHER = {
    QUANTITY: {"type": ["string", "number"]},
    INT_OR_STRING: {"type": ["string", "integer"]},
}


def strict(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, and lets optional ones be null."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if made.get("format") == "int-or-string" or made.get("x-kubernetes-int-or-string") is True:
        return {"type": ["string", "integer"]}
    fields = made.get("properties")
    if isinstance(fields, dict):
        if not made.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
        for name, field in fields.items():
            if name not in made.get("required", ()) and isinstance(field.get("type"), str):
                field["type"] = [field["type"], "null"]
    return made


def named(schema: Any) -> Iterator[str]:
    """Names of the definitions that a schema leads to at once."""
    for each in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(each, dict | list):
            yield from named(each)
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"].rpartition("/")[2]


def with_all_it_names(name: str, made: dict[str, Any]) -> Any:
    """Return a definition with those that it leads to, and no others: a kind is a small file."""
    needed = {name: made[name]}
    rest = [name]
    while rest:
        for each in named(made[rest.pop()]):
            if each not in needed:
                needed[each] = made[each]
                rest.append(each)
    return {"$ref": f"#/definitions/{name}", "definitions": needed}


def of_api(path: str) -> Iterator[tuple[str, str, str, Any]]:
    """Kind, group, version and schema of all that the API server knows."""
    definitions = json.loads(Path(path).read_bytes())["definitions"]
    made = {name: EITHER.get(name) or strict(each) for name, each in definitions.items()}
    for name, definition in definitions.items():
        for known in definition.get("x-kubernetes-group-version-kind", ()):
            if "metadata" in definition.get("properties", {}):
                schema = with_all_it_names(name, made)
                yield known["kind"], known["group"], known["version"], schema


def of_definition(path: str) -> Iterator[tuple[str, str, str, Any]]:
    """The same of the kinds that a CustomResourceDefinition brings."""
    for each in yaml.safe_load_all(Path(path).read_text(encoding="utf-8")):
        if each and each["kind"] == "CustomResourceDefinition":
            spec = each["spec"]
            for version in spec["versions"]:
                schema = strict(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                yield spec["names"]["kind"], spec["group"], version["name"], schema


def main(folder: Path, swagger: str, *definitions: str) -> None:
    """Write one file for each kind of each version, named as kubeconform looks for it."""
    folder.mkdir(parents=True)
    found = [*of_api(swagger), *(each for path in definitions for each in of_definition(path))]
    for kind, group, version, schema in found:
        if kind not in WANTED:
            continue
        words = [kind.lower(), *group.split(".")[:1], version]
        (folder / ("-".join(filter(None, words)) + ".json")).write_text(json.dumps(schema))


WANTED = {
    *("ConfigMap", "Namespace", "NetworkPolicy", "Pod", "PodDisruptionBudget", "PodMonitor"),
    *("PrometheusRule", "Role", "RoleBinding", "ScaledObject", "Service", "ServiceAccount"),
    "StatefulSet",
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
