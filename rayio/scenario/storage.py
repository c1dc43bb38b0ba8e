"""The section ``storage``: the model that ``simulate`` uses, how real storage is used, and the options of schemes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

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
from rayio.kinds import STORAGE_MODELS, STORAGES
from rayio.scenario.s3 import S3Options
from rayio.schema.choice import Choosing, options_of
from rayio.schema.distribution import NO_TIME, SecondsDistribution
from rayio.schema.fields import (
    Bytes,
    JsonSchema,
    NotYetError,
    Rate,
    Reads,
    RefusedError,
    Section,
    Text,
    choice,
    none_is_null,
    quantity,
    refusal,
    show,
    whole,
)
from rayio.storage.stores.opening import PageCache, Settings
from rayio.units import SECONDS, format_bytes, format_seconds

#: The least and the most that may happen per second: what follows must fit into clocks of 64 bits.
LEAST, MOST = 1e-6, 1e12


def _per_second(value: Any) -> float | None:
    return None if value is None or value == "none" else _rate(value, ", or none")


def _rate(value: Any, or_what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not LEAST <= value <= MOST:
        raise RefusedError(f"must be a number per second from {LEAST:g} to {MOST:g}{or_what}")
    return float(value)


_PER_SECOND_SCHEMA = {
    "anyOf": [{"type": "number", "minimum": LEAST, "maximum": MOST}, {"const": "none"}, {"type": "null"}]
}
#: Prefixes that there may be: the service keeps a count for each.
MOST_PREFIXES = 1 << 16


def _per_prefix(value: Any) -> float:
    return _rate(value, "")


_PerPrefix = Annotated[float, Reads(_per_prefix, {"type": "number", "minimum": LEAST, "maximum": MOST})]
_PerSecond = Annotated[float | None, Reads(_per_second, _PER_SECOND_SCHEMA)]


class StorageParameters(Section):
    """A modelled storage system: times per request and per file opened, caps per connection and per ``scope``."""

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
        "node", description="Whether each node has such a system of its own, or the cluster shares one."
    )
    provenance: Annotated[Literal["assumed", "published", "fitted"], choice("assumed", "published", "fitted")] = Field(
        "assumed", description="Whether these numbers are assumed, published, or fitted to a run."
    )
    source: Text = Field("", description="Who published these numbers, or which run they were fitted to.")


class Throttling(Section):
    """Rates of requests above which a modelled service refuses (503), as S3 does, and clients try again.

    The rates are those that Amazon publishes for S3; how a service counts, and when it scales, is assumed.
    """

    reads_per_second: _PerPrefix = Field(5500.0, description="Reads per second that are served below one prefix.")
    writes_per_second: _PerPrefix = Field(3500.0, description="Writes per second that are served below one prefix.")
    prefixes: Annotated[int, whole(1, MOST_PREFIXES)] = Field(
        1, description="Prefixes of the names in the bucket, over which requests are spread evenly."
    )
    burst: Annotated[float, quantity(SECONDS, maximum=3600.0)] = Field(
        1.0, description="Seconds' worth of requests that a prefix serves at once after it was idle."
    )
    split_after: Annotated[float | Literal["never"], quantity(SECONDS, positive=True, or_word="never")] = Field(
        1800.0,
        description="Time of refusals after which the service splits a prefix in two, which doubles its rates, and so "
        "on; or never.",
    )

    @property
    def told(self) -> str:
        """What is modelled of it, for whoever reads a prediction."""
        grown = (
            "" if self.split_after == "never" else f", twice that after {format_seconds(self.split_after)} of refusals"
        )
        each = f"{self.reads_per_second:,.15g} reads/s and {self.writes_per_second:,.15g} writes/s"
        where = "a prefix" if self.prefixes == 1 else f"each of {self.prefixes} prefixes"
        return f"storage.throttle: {each} {where}, above it 503{grown} (how S3 counts and scales is assumed)"


#: How a cache is written, for whoever wrote something else.
_SUCH_AS = "[{tier: ram, bytes: 64 GiB}]"


class CacheTier(Section):
    """Memory of each node that keeps samples of the datasets, whole, and what was used longest ago no longer."""

    tier: Annotated[Literal["ram"], choice("ram", later=("local_disk",))] = Field(
        description="What it is in: the node's memory. local_disk is not built yet."
    )
    bytes: Bytes = Field(description="Bytes of samples that each node keeps.")
    policy: Annotated[Literal["lru"], choice("lru")] = Field(
        "lru", description="What makes room for others: what was used longest ago."
    )

    @property
    def told(self) -> str:
        """What is modelled of it, for whoever reads a prediction."""
        return (
            f"storage.cache: each node that reads keeps {format_bytes(self.bytes)} of samples in memory, the least "
            "recently used go first (it serves as storage.model=memory does, which is assumed)"
        )


def _cache(value: Any) -> tuple[CacheTier, ...] | None:
    """Read the tiers of cache: none, or a list of one."""
    if value is None or value == "none":
        return None
    if value is False:
        raise RefusedError("write none (YAML reads off and no as false)")
    if not isinstance(value, (list, tuple)) or not all(isinstance(tier, (CacheTier, Mapping)) for tier in value):
        raise RefusedError(f"must be none, or a list of one tier, such as {_SUCH_AS}")
    if not value:
        raise RefusedError(f"has no tier; write none, or one such as {_SUCH_AS}")
    if len(value) > 1:
        raise NotYetError(show(value), instead=["one tier"])
    return (CacheTier.model_validate(value[0]),)


def _cache_schema() -> JsonSchema:
    tiers = {"type": "array", "items": CacheTier.model_json_schema(), "minItems": 1, "maxItems": 1}
    return {"anyOf": [tiers, {"const": "none"}, {"type": "null"}]}


#: A storage system that nobody described, as that of imported results: nothing can be predicted with it.
UNKNOWN = "unknown"


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
    return {"anyOf": [{"enum": [*STORAGE_MODELS, UNKNOWN]}, StorageParameters.model_json_schema()]}


@dataclass(frozen=True, eq=False)
class _OptionsOfSchemes:
    """Annotation of the field that holds the options of schemes, each by the name of its scheme."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(given: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Section], ...]:
            return tuple((name, options_of(STORAGES[name]).model_validate(keys)) for name, keys in given)

        def beside(schemes: tuple[tuple[str, Section], ...], info: SerializationInfo) -> dict[str, Any]:
            """All of them, but for those that several schemes have and nobody gave: their defaults may differ."""
            many = Counter(key for _, options in schemes for key, _ in options)
            return {
                key: value
                for _, options in schemes
                for key, value in options.model_dump(mode=info.mode).items()
                if many[key] == 1 or key in options.model_fields_set
            }

        flat = core_schema.plain_serializer_function_ser_schema(beside, info_arg=True)
        return core_schema.no_info_plain_validator_function(validate, serialization=flat)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        return {}


class Storage(Choosing):
    """What ``simulate`` uses as storage, and how real storage is to be used."""

    model: Annotated[str | StorageParameters, Reads(_model, _model_schema)] = Field(
        "nvme",
        description="Modelled storage system: the name of a preset, or its parameters; unknown where nobody described "
        "it, as in imported results: simulate then asks for one.",
    )
    throttle: Annotated[Throttling | None, BeforeValidator(none_is_null)] = Field(
        None,
        description="Rates of requests above which the modelled system refuses, in place of its requests_per_second, "
        "above which requests wait; a request is then made again as of s3:// (max_attempts). None refuses nobody.",
    )
    page_cache: Annotated[PageCache, choice("use", "drop", "direct")] = Field(
        "use",
        description="How files of mounted file systems are read and written: use lets the page cache (memory) serve "
        "what it has, drop evicts a file's pages before and after, direct goes past it (O_DIRECT).",
    )
    cache: Annotated[tuple[CacheTier, ...] | None, Reads(_cache, _cache_schema)] = Field(
        None,
        description="Cache of each node in front of modelled storage: a list of one tier of memory. Real storage has "
        "the caches that are there (page_cache).",
    )
    stage: Annotated[Literal[False], choice(False, later=(True,))] = Field(
        False, description="Whether the dataset is copied to the nodes before training; not yet."
    )
    faults: Annotated[Literal["none"], choice("none", later=(list, Mapping))] = Field(
        "none", description="Faults that storage is given on purpose; not yet."
    )

    #: The options of each scheme that addresses may have, which are written beside the keys above. Those of another
    #: package's schemes are here only where one of them is given: nobody imports what is not asked for.
    schemes: Annotated[tuple[tuple[str, Section], ...], _OptionsOfSchemes()] = ()

    @property
    def max_attempts(self) -> int:
        """Attempts that a request may take in all, as the options of ``s3://`` have it."""
        given: Any = dict(self.schemes).get("s3", S3Options())
        return int(given.max_attempts)

    @property
    def cache_bytes(self) -> int | None:
        """Bytes of samples that each node keeps in front of modelled storage; None keeps none."""
        return None if self.cache is None else self.cache[0].bytes

    def settings(self, seed: int) -> Settings:
        """How real storage is reached and used; the jitter between attempts is drawn from ``seed``."""
        return Settings(dict(self.schemes), seed, self.page_cache)

    @classmethod
    def hidden(cls) -> tuple[str, ...]:
        """Fields that are no keys."""
        return ("schemes",)

    @classmethod
    def options_there_are(cls) -> dict[str, tuple[type[Section], list[str]]]:
        """Every option of every scheme: its class and the schemes that have it, each as addresses begin with it."""
        found: dict[str, tuple[type[Section], list[str]]] = {}
        for name, scheme in STORAGES.usable().items():
            for key in options_of(scheme).model_fields:
                found.setdefault(key, (options_of(scheme), []))[1].append(f"{name}://")
        return found

    @model_validator(mode="before")
    @classmethod
    def _options_of_schemes_apart(cls, value: Any) -> Any:
        """Give each scheme the keys that are its options; one that several schemes have goes to each of them."""
        if not isinstance(value, Mapping) or "schemes" in value:
            return value
        others = {key: inner for key, inner in value.items() if key not in cls.model_fields}
        schemes = STORAGES.usable() if others else {name: STORAGES[name] for name in STORAGES.built_in}
        given = []
        for name, scheme in schemes.items():
            has = options_of(scheme).model_fields.keys()
            if others.keys() & has or (has and name in STORAGES.built_in):
                given.append((name, {key: inner for key, inner in others.items() if key in has}))
        used = {key for _, keys in given for key in keys}
        return {key: inner for key, inner in value.items() if key not in used} | {"schemes": tuple(given)}

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, data: Any) -> Any:
        """Refuse version 0.1's key, but for the default, which it wrote into run directories beside all others."""
        if not isinstance(data, Mapping) or "direct" not in data:
            return data
        if data["direct"] is False and {"model", "cache", "stage", "faults"} <= data.keys():
            return {key: value for key, value in data.items() if key != "direct"}
        reason = "is called storage.page_cache now; give use, drop or direct"
        raise refusal(RefusedError(reason, "direct", data["direct"]))

    def contradictions(self) -> Iterator[str]:
        """Two caps, of which only one can be."""
        model = self.model
        if self.throttle is not None:
            yield from _beside_throttle(model)
        if isinstance(model, StorageParameters) and None not in (model.requests_per_second, model.opens_per_second):
            yield "storage.model.opens_per_second: takes the place of requests_per_second; give one of them"


def _beside_throttle(model: str | StorageParameters) -> Iterator[str]:
    """Say which caps of a modelled system cannot be where it refuses requests above a rate."""
    given = STORAGE_MODELS[model] if isinstance(model, str) and model != UNKNOWN else model
    if isinstance(model, StorageParameters) and model.requests_per_second is not None:
        yield "storage.throttle: takes the place of storage.model.requests_per_second; give one of them"
    if getattr(given, "opens_per_second", None) is not None:
        named = f"storage.model={model}" if isinstance(model, str) else "storage.model.opens_per_second"
        yield f"storage.throttle: {named} has a metadata server, where requests wait; leave one of them out"
