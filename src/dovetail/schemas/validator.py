"""Validate untrusted values against untrusted schemas, for example the structured content of a tool result.

A schema or value that could block the event loop raises UnusableSchema, and the caller continues without validation.
spec: tools#output-schema, elicitation#requested-schema
"""

from copy import deepcopy
from typing import Any, Final, cast

from dovetail.error_context import clip
from dovetail.protocol.limits import KiB
from dovetail.schemas.cost import CostEstimator
from dovetail.schemas.untrusted_schema import DRAFT_7, DRAFT_2019, SchemaLimits, SchemaPlan, UnusableSchema, read_schema

__all__ = ["SchemaLimits", "SchemaValidator", "UnusableSchema", "apply_defaults", "compile_schema"]

_DEFAULT_LIMITS: Final = SchemaLimits()
_MAX_MESSAGE_CHARS: Final = 512
_MAX_PATTERN_BYTES: Final = 128 * KiB  # the maximum memory of a compiled regular expression


class SchemaValidator:
    """A compiled JSON schema."""

    def __init__(self, plan: SchemaPlan, validator: Any, limits: SchemaLimits) -> None:
        self._validator = validator
        self._cost_estimator = CostEstimator(plan, limits)
        self._max_cost = limits.max_cost

    def find_error(self, value: Any) -> str | None:
        """Return None if the value matches the schema. Otherwise return a message about the first error.

        Raise UnusableSchema if the validation takes too long.
        """
        _, explain_cost = self._cost_estimator.estimate(value)
        try:
            if self._validator.is_valid(value):
                return None
            if explain_cost > self._max_cost:
                return "does not match the schema (the value is too large to find the location)"
            self._validator.validate(value)
        except ValueError as error:
            return _format_error(error)
        return None


def compile_schema(schema: Any, *, limits: SchemaLimits = _DEFAULT_LIMITS) -> SchemaValidator:
    """Compile an untrusted JSON schema. Raise UnusableSchema if it is not safe to use."""
    # This import is here because few clients need the package.
    import jsonschema_rs

    plan = read_schema(schema, limits)
    validator_types = {DRAFT_7: jsonschema_rs.Draft7Validator, DRAFT_2019: jsonschema_rs.Draft201909Validator}
    validator_type = validator_types.get(plan.dialect, jsonschema_rs.Draft202012Validator)
    try:
        validator = validator_type(
            plan.schema,
            validate_formats=False,
            mask="the value",
            retriever=_reject_reference,
            # This regex engine takes linear time. It does not support lookaround and back references.
            pattern_options=jsonschema_rs.RegexOptions(
                size_limit=_MAX_PATTERN_BYTES, dfa_size_limit=_MAX_PATTERN_BYTES
            ),
        )
    except jsonschema_rs.ValidationError as error:
        if error.kind.name == "format" and isinstance(error.instance, str):
            raise UnusableSchema(f"unsupported pattern: {clip(error.instance)}") from None
        raise UnusableSchema(f"invalid schema: {_first_line(error)}") from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise UnusableSchema(f"invalid schema: {_first_line(error)}") from None
    return SchemaValidator(plan, validator, limits)


def apply_defaults(schema: Any, content: dict[str, Any]) -> dict[str, Any]:
    """Add default values for the missing fields of an answer to a form. spec: elicitation#requested-schema"""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return dict(content)
    defaults = {
        name: deepcopy(property_schema["default"])
        for name, property_schema in cast("dict[str, Any]", properties).items()
        if isinstance(property_schema, dict) and "default" in property_schema and name not in content
    }
    return {**content, **defaults}


def _reject_reference(uri: str) -> Any:
    raise ValueError(f"the schema refers to another document: {clip(uri)}")


def _first_line(error: Exception) -> str:
    return clip(str(error).partition("\n")[0], 200)


def _format_error(error: Any) -> str:
    path = cast("list[str | int]", getattr(error, "instance_path", []))
    location = ".".join(clip(str(step), 40) for step in path[:16]) + (".…" if len(path) > 16 else "")
    return clip(f"{clip(location, 240)}: {_first_line(error)}" if location else _first_line(error), _MAX_MESSAGE_CHARS)
