"""What kustomize makes of a folder, as far as this project asks: resources, patches, generated ConfigMaps, images.

Whatever a kustomization says that this does not know, and whatever is named and not there, is an error.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

KNOWN = {"apiVersion", "kind", "resources", "patches", "configMapGenerator", "generatorOptions", "images"}


def build(folder: Path) -> list[Document]:
    """The documents of a folder; names of generated ConfigMaps have no hash."""
    said = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert not (unknown := said.keys() - KNOWN), f"{folder}: not known here: {unknown}"
    found: list[Document] = []
    for name in said["resources"]:
        path = (folder / name).resolve()
        assert path.exists(), f"{folder}: no {name}"
        found += build(path) if path.is_dir() else [d for d in yaml.safe_load_all(path.read_text()) if d]
    found += [_generated(folder, one, said.get("generatorOptions", {})) for one in said.get("configMapGenerator", ())]
    found = copy.deepcopy(found)
    for patch in said.get("patches", ()):
        meant = [document for document in found if _is(document, patch["target"])]
        assert meant, f"{folder}: nothing is {patch['target']}"
        for operation in yaml.safe_load((folder / patch["path"]).read_text()):
            for document in meant:
                _apply(document, operation)
    for image in said.get("images", ()):
        renamed = [_tag(document, image["name"], image["newTag"]) for document in found]
        assert any(renamed), f"{folder}: no image {image['name']}"
    names = [(document["kind"], document["metadata"]["name"]) for document in found]
    assert len(names) == len(set(names)), f"{folder}: two documents of one name"
    return found


def _generated(folder: Path, one: Document, options: Document) -> Document:
    labels = {**options.get("labels", {}), **one.get("options", {}).get("labels", {})}
    data = {name: (folder / name).read_text() for name in one["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": one["name"], "labels": labels}, "data": data}


def _is(document: Document, target: Document) -> bool:
    group, _, version = document["apiVersion"].rpartition("/")
    of = {"group": group, "version": version, "kind": document["kind"], "name": document["metadata"]["name"]}
    return all(of[key] == value for key, value in target.items())


def _apply(document: Any, operation: Document) -> None:
    """Apply one operation of JSON Patch (RFC 6902): add or replace."""
    *way, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
    inside = document
    for part in way:
        inside = inside[int(part)] if isinstance(inside, list) else inside[part]
    value = copy.deepcopy(operation["value"])
    if isinstance(inside, list):
        assert (operation["op"], last) == ("add", "-"), operation
        inside.append(value)
        return
    assert operation["op"] == "add" or (operation["op"] == "replace" and last in inside), f"no {operation['path']}"
    inside[last] = value


def _tag(value: Any, name: str, tag: str) -> bool:
    """Give every container's image of a name its tag; whether there was one."""
    if isinstance(value, list):
        return sum(_tag(item, name, tag) for item in value) > 0
    if not isinstance(value, dict):
        return False
    found = [_tag(inner, name, tag) for inner in value.values()]
    for container in value.get("containers", ()):
        if container["image"].partition(":")[0] == name:
            container["image"] = f"{name}:{tag}"
            found.append(True)
    return any(found)
