"""Keys that choose a kind by its name, and the options that the kind brings with it.

There are two ways to write it. Next to the name (``dataset: {format: hdf5, chunk: 1 MiB}``): the section is a
:class:`Choosing`, and the kind says which keys are its options. As a separate value (``sync: {kind: allreduce,
bytes: 1 GB}``): the kind is a section itself, see :class:`KindOf`. Either way names, options and the JSON Schema come
from a registry, so that another package's kind is written, checked and shown as one of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import (
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

from rayio.errors import ScenarioError
from rayio.registry import Registry
from rayio.schema.fields import (
    JsonSchema,
    NotYetError,
    Reads,
    RefusedError,
    Section,
    besides,
    listed,
    refusing,
    show,
)


class NoOptions(Section):
    """The options of a kind that has none."""


NO_OPTIONS = NoOptions()


def options_of(kind: Any) -> type[Section]:
    """Return the class of a kind's options; one without keys where it has none."""
    options: type[Section] = getattr(kind, "options", NoOptions)
    return options


def described(schema: JsonSchema, field: FieldInfo) -> JsonSchema:
    """Put a field's description into its schema."""
    return schema | ({"description": field.description} if field.description else {})


def summary(kind: type) -> str:
    """First line of a class's docstring."""
    return (kind.__doc__ or "").strip().partition("\n")[0]


def named(registry: Registry[Any]) -> Reads:
    """Read the name of an entry of a registry."""

    def read(value: Any) -> str:
        check_name(registry, value)
        return str(value)

    return Reads(read, lambda: {"enum": [*registry]})


def check_name(registry: Registry[Any], value: Any, key: str = "") -> None:
    """Refuse what is no name of a registry's entry, or of one that cannot be used; ``key`` is the part that is meant.

    Raises:
        RefusedError: with the names there are, or why the entry cannot be used.
        NotYetError: it is documented and not built.
    """
    if isinstance(value, str) and value in registry:
        try:
            registry[value]
        except ScenarioError as error:
            raise RefusedError(str(error), key, value) from None
    elif isinstance(value, str) and value in registry.later:
        raise NotYetError(show(value), key, registry)
    elif value is False and "none" in registry:
        raise RefusedError("write none (YAML reads off and no as false)", key, value)
    else:
        planned = [name for name in registry.later if name not in registry]
        not_yet = f" (not yet: {', '.join(planned)})" if planned else ""
        raise RefusedError(f"must be {listed([*registry])}{not_yet}", key, value)


@dataclass(frozen=True, slots=True)
class Choice:
    """A key of a section that names a kind, whose options stand next to it."""

    key: str
    registry: Registry[Any]
    #: The field that holds the options of the kind; nobody writes it.
    field: str
    #: The field that keeps options of kinds that were not chosen, which then do nothing; empty: they are refused.
    spare: str = ""

    def kind(self, name: Any) -> Any:
        """Return the kind of this name; None when there is none, or it cannot be used: then the key is refused."""
        try:
            return self.registry[name] if isinstance(name, str) and name in self.registry else None
        except ScenarioError:
            return None

    def owners(self, key: str) -> list[str]:
        """Names of the kinds that have this option."""
        return [name for name, kind in self.registry.usable().items() if key in options_of(kind).model_fields]


@dataclass(frozen=True, eq=False)
class OptionsOf:
    """Annotation of the field that holds the options of the kind that ``key`` names."""

    key: str
    registry: Registry[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: Any, info: ValidationInfo) -> Section:
            name = info.data.get(self.key)
            if isinstance(value, Section) or name is None:  # None: the name itself was refused
                return value if isinstance(value, Section) else NO_OPTIONS
            return options_of(self.registry[name]).model_validate(value)

        return core_schema.with_info_plain_validator_function(validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        return {}


def schema_of_kind(kind: type[Section]) -> JsonSchema:
    """The JSON Schema of a kind that is a mapping; its name is described by what the kind is."""
    schema = kind.model_json_schema()
    name = schema["properties"]["kind"]
    return schema | {"properties": {**schema["properties"], "kind": {**name, "description": summary(kind)}}}


class Choosing(Section):
    """A section in which some keys choose kinds, whose options stand next to them.

    In the object they stand apart: each choice has a field with the options of its kind, of the kind's own class.
    """

    choices: ClassVar[tuple[Choice, ...]] = ()

    @model_validator(mode="wrap")
    @classmethod
    def _options_apart(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(value, Mapping):
            return handler(value)
        data = dict(value)
        for field in cls.unwritten():
            if field in data and isinstance(data[field], (Mapping, str, int, float, list, type(None))):
                hidden = InitErrorDetails(type="extra_forbidden", loc=(field,), input=data[field])
                raise ValidationError.from_exception_data(cls.__name__, [hidden])
        for choice in cls.choices:
            if choice.field not in data:
                kind = choice.kind(data.get(choice.key, cls.model_fields[choice.key].default))
                keys = [] if kind is None else [key for key in options_of(kind).model_fields if key in data]
                data[choice.field] = {key: data.pop(key) for key in keys}
        unused = [key for key in data if key not in cls.model_fields]
        refused = [error for key in unused if (error := cls._place(key, data)) is not None]
        return besides(handler, data, refused)

    @classmethod
    def _place(cls, key: str, data: dict[str, Any]) -> RefusedError | None:
        """Keep an option of a kind that was not chosen where it may stand, or return its refusal; leave other keys."""
        for choice in cls.choices:
            if not (owners := choice.owners(key)):
                continue
            value, name = data.pop(key), data.get(choice.key, cls.model_fields[choice.key].default)
            if value is None or value == "none" or choice.kind(name) is None:
                return None
            if not choice.spare:
                return RefusedError(f"only {listed(owners)} has {key}, not {name}", key, value)
            options = options_of(choice.registry[owners[0]]).model_validate({key: value})
            data[choice.spare] = (*data.get(choice.spare, ()), options)
            return None
        return None

    def kind_of(self, choice: Choice) -> Any:
        """Return the kind that a key chooses."""
        return choice.registry[getattr(self, choice.key)]

    @model_serializer(mode="wrap")
    def _options_beside(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        spare = {choice.spare for choice in self.choices}
        for key, value in handler(self).items():
            if key in spare:
                flat |= {name: option for options in value for name, option in options.items() if option is not None}
            else:
                flat |= value if key in self.unwritten() else {key: value}
        return flat

    @classmethod
    def unwritten(cls) -> tuple[str, ...]:
        """Fields that are no keys."""
        return tuple(field for choice in cls.choices for field in (choice.field, choice.spare) if field)

    @classmethod
    def options_there_are(cls) -> dict[str, tuple[type[Section], list[str]]]:
        """Every option of every kind that can be chosen here: its class and the kinds that have it, each named."""
        owners: dict[str, tuple[type[Section], list[str]]] = {}
        for choice in cls.choices:
            for name, kind in choice.registry.usable().items():
                for key in options_of(kind).model_fields:
                    owners.setdefault(key, (options_of(kind), []))[1].append(f"{choice.key} {name}")
        return owners

    @classmethod
    def known_keys(cls) -> list[str]:
        """Every key that may be written here, those of any kind among them."""
        return [*(key for key in cls.model_fields if key not in cls.unwritten()), *cls.options_there_are()]

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for field in cls.unwritten():
            del properties[field]
        for key, (options, names) in cls.options_there_are().items():
            options.model_rebuild()
            option = dict(handler.resolve_ref_schema(handler(options.__pydantic_core_schema__))["properties"][key])
            if names:
                option["description"] = f"Of {listed(names)}: {option.get('description', '')}".rstrip(": ")
            properties[key] = option
        return schema


@dataclass(frozen=True, eq=False)
class KindOf:
    """Annotation of a value that is a kind: its name, or a mapping of its name as ``kind`` and its options.

    ``{name: value}`` also chooses, and gives the option of the kind's own name. The entries of the registry are
    sections. ``allowed`` ends the sentence "must be" for a value that is neither.
    """

    registry: Registry[Any]
    allowed: str

    def sections(self) -> list[type[Section]]:
        """Classes of the kinds there are."""
        return [*self.registry.usable().values()]

    def read(self, value: Any) -> Any:
        """Make the kind of what was written."""
        if isinstance(value, Section):
            return value
        if isinstance(value, str) and (value in self.registry or value in self.registry.later):
            check_name(self.registry, value)
            return self.registry[value].model_validate({})
        if isinstance(value, Mapping):
            kind = value.get("kind")
            if kind is not None:
                check_name(self.registry, kind, "kind")
                return self.registry[kind].model_validate(value)
            if len(value) == 1 and (name := next(iter(value))) in self.registry:
                check_name(self.registry, name)
                if name in self.registry[name].model_fields:
                    return self.registry[name].model_validate(value)
        if value is False and "none" in self.registry:
            raise RefusedError("write none (YAML reads off and no as false)")
        several = [name for name in value if name in self.registry] if isinstance(value, Mapping) else []
        if len(several) > 1:
            raise RefusedError(
                f"has {' and '.join(several)}, and each of them alone chooses a kind; leave out all but one, or add "
                f"the kind of the one that replaces what was given before, such as kind: {several[-1]}"
            )
        others = [name for name in self.registry if name not in self.allowed]
        raise RefusedError(f"must be {self.allowed}" + f", or {listed(others)}" * bool(others))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(refusing(self.read))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        kinds = self.registry.usable()
        plain = [name for name, kind in kinds.items() if not any(f.is_required() for f in kind.model_fields.values())]
        short = [
            {"type": "object", "properties": {name: kind.model_json_schema()["properties"][name]},
             "additionalProperties": False}
            for name, kind in kinds.items() if name in kind.model_fields
        ]  # fmt: skip
        names: list[JsonSchema] = [{"enum": plain}] if plain else []
        return {"anyOf": [*names, *short, *map(schema_of_kind, kinds.values())]}
