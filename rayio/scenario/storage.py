"""The section ``storage``: the model that ``simulate`` uses, how real storage is used, and the options of schemes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from rayio.errors import ScenarioError
from rayio.kinds import LAYERS, STORAGE_MODELS, STORAGES
from rayio.registry import Registry
from rayio.scenario.s3 import S3Options
from rayio.scenario.servers import MOST_SERVERS, Servers
from rayio.schema.choice import Choosing, options_of
from rayio.schema.distribution import NO_TIME, SecondsDistribution
from rayio.schema.fields import (
    JsonSchema,
    Rate,
    Reads,
    RefusedError,
    Section,
    Text,
    choice,
    each,
    none_is_null,
    per_second,
    quantity,
    refusal,
    whole,
)  # fmt: skip
from rayio.storage.model import DeviceSpec
from rayio.storage.stores.opening import PageCache, Settings
from rayio.units import BYTES, RATE

_PerSecond = Annotated[float | None, per_second(or_none=True)]


#: The most parts of an upload in flight.
MOST_UPLOAD_PARTS = 1024


class StorageParameters(Section):
    """A modelled storage system: times per request and per opened file, limits per connection and per ``scope``."""

    first_byte: SecondsDistribution = Field(description="Time from a request to its first byte.")
    open: SecondsDistribution = Field(NO_TIME, description="Time to open a file.")
    connection_bandwidth: Rate = Field(description="Bytes per second of one request in flight.")
    bandwidth: Rate = Field(description="Bytes per second of everything within scope together.")
    requests_per_second: _PerSecond = Field(None, description="Requests per second within scope; none is no cap.")
    opens_per_second: _PerSecond = Field(
        None,
        description="Files opened per second within scope, as a metadata server has it; replaces requests_per_second.",
    )
    scope: Annotated[Literal["node", "cluster"], choice("node", "cluster")] = Field(
        "node", description="Whether each node has a separate system, or the cluster shares one."
    )
    gap: Annotated[int, quantity(BYTES, integer=True)] = Field(
        0, description="Ranges of a file that are at most this far apart are one request; 0 is never."
    )
    upload_parts: Annotated[int, whole(1, MOST_UPLOAD_PARTS)] = Field(
        1,
        description="Parts of an upload in flight, as of an object store: it takes files above 8 MiB in parts of 8 "
        "MiB, with a request before them and one after. 1: requests of checkpoint.request_bytes, one by one.",
    )
    servers: Annotated[Servers | None, BeforeValidator(none_is_null)] = Field(
        None, description="The object servers over which files are striped; none is one pipe, in which files are alike."
    )
    reached: Annotated[float | None, quantity(RATE, positive=True, or_none=True)] = Field(
        None,
        description="Bytes per second within scope that a calibrated run reached without a limit, so that bandwidth is "
        "a guess: the interval of a prediction goes from this limit to none. none: bandwidth is no guess.",
    )
    provenance: Annotated[Literal["assumed", "published", "fitted"], choice("assumed", "published", "fitted")] = Field(
        "assumed", description="Whether these numbers are assumed, published, or fitted to a run."
    )
    source: Text = Field("", description="Who published these numbers, or which run they were fitted to.")

    @property
    def device(self) -> DeviceSpec:
        """The rates of one device of it."""
        return DeviceSpec(
            self.connection_bandwidth, self.bandwidth, self.requests_per_second, self.opens_per_second,
            self.open if self.open.expected > 0 else None, self.upload_parts,
        )  # fmt: skip


#: The storage of imported results, which has no description: nothing can be predicted with it.
UNKNOWN = "unknown"


def modelled_gap(scenario: Any) -> int:
    """Return how close ranges of a file are one request to the storage model of a scenario; 0 for never."""
    model = scenario.storage.model
    if isinstance(model, StorageParameters):
        return model.gap
    return 0 if model == UNKNOWN else int(STORAGE_MODELS[model].gap)


def _model(value: Any) -> Any:
    if isinstance(value, StorageParameters) or value == UNKNOWN:
        return value
    if isinstance(value, Mapping):
        return StorageParameters.model_validate(value)
    if not isinstance(value, str) or not value.strip():
        raise RefusedError("must be the name of a preset, such as nvme, or a mapping of parameters")
    try:
        STORAGE_MODELS[value]
    except ScenarioError as error:
        raise RefusedError(str(error)) from None
    return value


def _model_schema() -> JsonSchema:
    parameters = StorageParameters.model_json_schema()
    servers = parameters.pop("$defs")[Servers.__name__]
    parameters["properties"]["servers"]["anyOf"] = [servers, {"type": "null"}, {"const": "none"}]
    return {"anyOf": [{"enum": [*STORAGE_MODELS, UNKNOWN]}, parameters]}


@dataclass(frozen=True, eq=False)
class _OptionsOf:
    """An annotation of a field with the options of several kinds of a registry, by the names of the kinds."""

    registry: Registry[Any]

    def with_defaults(self, given: tuple[tuple[str, Section], ...]) -> dict[str, Section]:
        """Return the options of every built-in kind, by name, and those given of other packages' kinds."""
        options = dict(given)
        for name in self.registry.built_in:
            options.setdefault(name, _defaults(self.registry[name]))
        return {name: options[name] for name in dict.fromkeys([*self.registry.built_in, *options])}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(given: tuple[str, Any]) -> tuple[str, Section]:
            name, keys = given
            kind = options_of(self.registry[name])
            return name, keys if isinstance(keys, kind) else kind.model_validate(keys)

        def validate(given: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Section], ...]:
            return tuple(
                (name, options) for name, options in each(given, read) if options != _defaults(self.registry[name])
            )

        def flatten(kinds: tuple[tuple[str, Section], ...], info: SerializationInfo) -> dict[str, Any]:
            """Return all options, except unset ones of several kinds: their defaults may differ."""
            every = self.with_defaults(kinds).values()
            many = Counter(key for options in every for key, _ in options)
            return {
                key: value
                for options in every
                for key, value in options.model_dump(mode=info.mode).items()
                if many[key] == 1 or key in options.model_fields_set
            }

        flat = core_schema.plain_serializer_function_ser_schema(flatten, info_arg=True)
        return core_schema.no_info_plain_validator_function(validate, serialization=flat)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        return {}


@cache
def _defaults(kind: Any) -> Section:
    return options_of(kind).model_validate({})


_LAYERS = _OptionsOf(LAYERS)

#: The name of a preset, or parameters.
AnyModel = Annotated[str | StorageParameters, Reads(_model, _model_schema)]


class Storage(Choosing):
    """The storage model of ``simulate``, and the settings of real storage."""

    model: AnyModel = Field(
        "nvme",
        description="Modelled storage system: the name of a preset, or its parameters; unknown where nobody described "
        "it, as in imported results: simulate then asks for one.",
    )
    stripe_count: Annotated[int | None, whole(1, MOST_SERVERS, or_none=True)] = Field(
        None, description="Servers of the model over which one file is striped (lfs setstripe -c); none is the model's."
    )
    stripe_size: Annotated[int | None, quantity(BYTES, positive=True, integer=True, or_none=True)] = Field(
        None, description="Bytes of a stripe (lfs setstripe -S); none is the model's."
    )
    page_cache: Annotated[PageCache, choice("use", "drop", "direct")] = Field(
        "use",
        description="Use of the page cache for mounted files. use: it serves what it has. drop: a file's pages are "
        "evicted before and after. direct: it is bypassed (O_DIRECT).",
    )
    stage: Annotated[Literal[False], choice(False, later=(True,))] = Field(
        False, description="Whether the dataset is copied to the nodes before training; not yet."
    )

    #: The options of each layer (``LAYERS``) that has others than the defaults, written next to the other keys:
    #: layers that nobody gives are not imported.
    layers: Annotated[tuple[tuple[str, Section], ...], _LAYERS] = ()
    #: The options of each scheme of addresses that has others than the defaults, written next to the keys above.
    schemes: Annotated[tuple[tuple[str, Section], ...], _OptionsOf(STORAGES)] = ()

    @property
    def servers(self) -> Servers | None:
        """The object servers of the model, with the stripes of the dataset's files; None if it has none."""
        given = self.model.servers if isinstance(self.model, StorageParameters) else None
        if isinstance(self.model, str) and self.model != UNKNOWN and STORAGE_MODELS[self.model].servers is not None:
            given = Servers.model_validate(STORAGE_MODELS[self.model].servers)
        stripes = {"stripe_count": self.stripe_count, "stripe_size": self.stripe_size}
        update = {key: value for key, value in stripes.items() if value is not None}
        return given if given is None else given.model_copy(update=update)

    @property
    def max_attempts(self) -> int:
        """The most attempts of a request, from the options of ``s3://``."""
        given: Any = dict(self.schemes).get("s3", S3Options())
        return int(given.max_attempts)

    def __getattr__(self, key: str) -> Any:
        """Return the value of a layer's key, such as ``throttle``."""
        if not key.startswith("_"):
            for options in _LAYERS.with_defaults(self.__dict__.get("layers", ())).values():
                if key in type(options).model_fields:
                    return getattr(options, key)
        return super().__getattr__(key)  # type: ignore[misc]

    def without(self, *layers: str) -> Self:
        """Return a copy without the keys of some layers."""
        return self.model_copy(update={"layers": tuple(pair for pair in self.layers if pair[0] not in layers)})

    def defaults(self, layer: str) -> list[tuple[str, Any]]:
        """Return the keys of a layer with their defaults, with which it does nothing."""
        return [(key, field.get_default()) for key, field in options_of(LAYERS[layer]).model_fields.items()]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values of keys, including those of layers."""
        own = {key: value for key, value in (update or {}).items() if key in type(self).model_fields}
        others = {key: value for key, value in (update or {}).items() if key not in own}
        if others:
            changed = []
            for name, options in _LAYERS.with_defaults(own.get("layers", self.layers)).items():
                keys = {key: value for key, value in others.items() if key in type(options).model_fields}
                changed.append((name, options.model_copy(update=keys)))
            own["layers"] = tuple(pair for pair in changed if pair[1] != _defaults(LAYERS[pair[0]]))
        return super().model_copy(update=own, deep=deep)

    def settings(self, seed: int) -> Settings:
        """Return the settings of real storage; the jitter between attempts is drawn from ``seed``."""
        return Settings(dict(self.schemes), seed, self.page_cache)

    @classmethod
    def unwritten(cls) -> tuple[str, ...]:
        """Return the fields that are no keys."""
        return ("schemes", "layers")

    @classmethod
    def options_there_are(cls) -> dict[str, tuple[type[Section], list[str]]]:
        """Return every option of every scheme and layer: its class, and the prefixes of addresses that have it."""
        options: dict[str, tuple[type[Section], list[str]]] = {}
        for layer in LAYERS.usable().values():
            options |= {key: (options_of(layer), []) for key in options_of(layer).model_fields}
        for name, scheme in STORAGES.usable().items():
            for key in options_of(scheme).model_fields:
                options.setdefault(key, (options_of(scheme), []))[1].append(f"{name}://")
        return options

    @model_validator(mode="before")
    @classmethod
    def _options_of_kinds_apart(cls, value: Any) -> Any:
        """Move the options to the schemes and layers that have them; an option of several goes to each."""
        if not isinstance(value, Mapping) or "schemes" in value or "layers" in value:
            return value
        others, data = {key: inner for key, inner in value.items() if key not in cls.model_fields}, dict(value)
        own: set[str] = set()
        for field, registry in (("schemes", STORAGES), ("layers", LAYERS)):
            given = []
            if others.keys() - own:  # else no layer is imported
                own = {key for name in registry.built_in for key in options_of(registry[name]).model_fields}
                is_all_ours = others.keys() <= own
                kinds = {name: registry[name] for name in registry.built_in} if is_all_ours else registry.usable()
                for name, kind in kinds.items():
                    if keys := others.keys() & options_of(kind).model_fields.keys():
                        given.append((name, {key: others[key] for key in others if key in keys}))
            data = {key: inner for key, inner in data.items() if not any(key in keys for _, keys in given)}
            data[field] = tuple(given)
        return data

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, data: Any) -> Any:
        """Refuse version 0.1's key, except the default, which run directories of 0.1 have with all others."""
        if not isinstance(data, Mapping) or "direct" not in data:
            return data
        if data["direct"] is False and {"model", "cache", "stage", "faults"} <= data.keys():
            return {key: value for key, value in data.items() if key != "direct"}
        reason = "is called storage.page_cache now; give use, drop or direct"
        raise refusal(RefusedError(reason, "direct", data["direct"]))

    def contradictions(self) -> Iterator[str]:
        """Refuse two limits that exclude each other."""
        model = self.model
        if isinstance(model, StorageParameters) and None not in (model.requests_per_second, model.opens_per_second):
            yield "storage.model.opens_per_second: takes the place of requests_per_second; give one of them"
        servers, named = self.servers, model if isinstance(model, str) else "the model"
        if servers is None:
            for key in ("stripe_count", "stripe_size"):
                if getattr(self, key) is not None:
                    yield f"storage.{key}: {named} has no servers; choose one that has, such as lustre-theta"
        elif servers.stripe_count > servers.number:
            key = "stripe_count" if self.stripe_count is not None else "model.servers.stripe_count"
            yield f"storage.{key}: {servers.stripe_count} stripes on {servers.number} servers; give at most that many"
