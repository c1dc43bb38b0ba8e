"""The schema that editors use: every key with its meaning, default, words and units; it refuses what we do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rayio.scenario.load import load, packaged
from rayio.scenario.model import Scenario
from rayio.scenario.write import json_schema, to_yaml
from rayio.units import BYTES, RATE, SECONDS, Dimension

#: Keys that hold whatever text a user has; every other text is one of some words, or has a pattern.
FREE = {"extends", "source", "path", "endpoint", "region", "profile", "contradicts", "differs"}
FREE |= {"file", "column", "values", "origin"}  # of measured values


Json = dict[str, Any]


@pytest.fixture(scope="module")
def schema() -> Json:
    """The schema, which takes half a second."""
    return json_schema()


@pytest.fixture(scope="module")
def check(schema: Json) -> jsonschema.Draft202012Validator:
    """What an editor does with the schema."""
    return jsonschema.Draft202012Validator(schema)


def properties(value: Any, path: str = "") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Give each property anywhere in a schema: where it is, its name, and its own schema."""
    if isinstance(value, dict):
        for name, inner in value.get("properties", {}).items():
            yield f"{path}.{name}", name, inner
        for key, inner in value.items():
            if key == "properties":
                for name, one in inner.items():
                    yield from properties(one, f"{path}.{name}")
            elif key not in ("default", "enum", "const"):
                yield from properties(inner, path if key in ("anyOf", "$defs", "items") else f"{path}/{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from properties(inner, f"{path}|{number}")


def required(value: Any) -> set[str]:
    """Give the names that pydantic requires anywhere."""
    if isinstance(value, dict):
        own = value.get("required", [])
        return {*(own if isinstance(own, list) else [])}.union(*map(required, value.values()))
    return set().union(*map(required, value)) if isinstance(value, list) else set()


def test_the_schema_has_a_name(schema: Json) -> None:
    assert schema["$id"] == "urn:rayio:scenario:1"
    assert [*schema][:2] == ["$schema", "$id"]


def test_every_property_says_what_it_is(schema: Json) -> None:
    found = [(path, inner) for path, _, inner in properties(schema)]
    assert len(found) > 200
    assert not [path for path, inner in found if len(inner.get("description", "")) < 5]


def test_every_property_has_a_default_unless_it_must_be_given(schema: Json) -> None:
    needed = required(Scenario.model_json_schema()) | {
        "mean",
        "stdev",
        "median",
        "sigma",
        "low",
        "high",
        "value",
        "begin",
        "end",
    }
    needed |= {"steps", "min", "max"}  # of a ramp; of readers that come and go
    without = {
        path
        for path, name, inner in properties(schema)
        if "default" not in inner and name not in needed and "const" not in inner and not path.startswith(".expect.")
    }
    assert without == {".extends"}, "there is none where nothing is extended, and no condition where none is given"


def parts(inner: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for part in inner.get("anyOf", [inner]) for one in (parts(part) if "anyOf" in part else [part])]


def test_every_text_is_one_of_some_words_or_has_a_pattern(schema: Json) -> None:
    loose = [
        path
        for path, name, inner in properties(schema)
        for part in parts(inner)
        if part.get("type") == "string" and not {"pattern", "enum", "const"} & {*part} and name not in FREE
    ]
    assert not loose


def test_every_quantity_has_the_pattern_of_its_units(schema: Json) -> None:
    known = {dimension.pattern for dimension in (BYTES, SECONDS, RATE)}
    quantities = [
        inner
        for _, _, inner in properties(schema)
        if {"number", "string"} <= {str(part.get("type")) for part in parts(inner)}
    ]
    assert len(quantities) > 40
    for inner in quantities:
        assert {part["pattern"] for part in parts(inner) if part.get("type") == "string"} <= known


@pytest.mark.parametrize("dimension", [BYTES, SECONDS, RATE], ids=lambda one: one.name)
@given(
    st.one_of(
        st.from_regex(r"[+-]?[0-9.eE_]{1,6} ?[a-zA-Zµ/]{0,6}", fullmatch=True),
        st.tuples(st.floats(0, 1e6), st.sampled_from([*BYTES.units, *SECONDS.units, *RATE.units, "parsecs", ""])).map(
            lambda pair: f"{pair[0]} {pair[1]}"
        ),
    )
)
def test_a_pattern_takes_what_is_read_and_nothing_that_has_another_unit(dimension: Dimension, text: str) -> None:
    try:
        dimension.parse(text)
        is_read = True
    except ValueError as error:
        is_read = False
        if "0 or more" in str(error):  # a pattern cannot count
            return
    assert jsonschema.Draft202012Validator(dimension.schema).is_valid(text) == is_read, text


@pytest.mark.parametrize("name", packaged())
def test_packaged_scenarios_are_valid_as_files_and_as_they_are_shown(
    name: str, check: jsonschema.Draft202012Validator
) -> None:
    from rayio.scenario.source import packaged_folder

    check.validate(yaml.safe_load((packaged_folder() / f"{name}.yaml").read_text()))
    check.validate(yaml.safe_load(to_yaml(load(name))))


@pytest.mark.parametrize(
    "wrong",
    [
        {"train": {"compute": "abc"}},
        {"train": {"compute": {"kind": "normal", "mean": "3 parsecs", "stdev": "1 ms"}}},
        {"loader": {"decode": "10 parsecs"}},
        {"loader": {"shuffle": "yes"}},
        {"loader": {"max_bytes_in_flight": "7 bananas"}},
        {"storage": {"model": "foo"}},
        {"checkpoint": {"model": {"bytes": "1 s"}}},
        {"expect": {"foo": ">= 1"}},
        {"expect": {"au": "90 % or so"}},
        {"loader": {"batchsize": 7}},
    ],
)
def test_what_is_refused_is_refused_by_the_schema_too(
    wrong: dict[str, Any], check: jsonschema.Draft202012Validator
) -> None:
    assert not check.is_valid(wrong)


@pytest.mark.parametrize(
    "right",
    [
        {"train": {"compute": 0.3}},
        {"train": {"compute": "323 ms"}},
        {"loader": {"max_bytes_in_flight": "auto"}},
        {"costs": {"transfer_bandwidth": "none"}},
        {"checkpoint": "none"},
        {"dataset": {"sample_bytes": {"kind": "lognormal", "median": "1 MiB", "sigma": 0.5, "max": "4 MiB"}}},
        {"expect": {"au": ">= 90 %", "wall_seconds": "< 1e3"}},
    ],
)
def test_what_is_right_is_taken(right: dict[str, Any], check: jsonschema.Draft202012Validator) -> None:
    check.validate(right)
