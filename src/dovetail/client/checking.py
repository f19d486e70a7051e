"""Checks values against schemas when both come from a stranger: a tool's structured content, a user's answer to a form.

Whatever could hold up the event loop is refused as Unusable before it is tried; the caller then goes on without a
verdict. spec: tools#output-schema, elicitation#requested-schema
"""

from copy import deepcopy
from typing import Any, Final, cast

from dovetail.errors import clip
from dovetail.protocol.limits import KiB
from dovetail.protocol.pricing import Pricing
from dovetail.protocol.schemas import DRAFT_7, DRAFT_2019, Plan, SchemaLimits, Unusable, read

__all__ = ["Checker", "SchemaLimits", "Unusable", "compile_schema", "with_defaults"]

_LIMITS: Final = SchemaLimits()
_LONGEST: Final = 512
_PATTERN_SIZE: Final = 128 * KiB  # of one compiled pattern


class Checker:
    """A schema ready to check values."""

    def __init__(self, plan: Plan, validator: Any, limits: SchemaLimits) -> None:
        self._validator = validator
        self._pricing = Pricing(plan, limits)
        self._most = limits.cost

    def check(self, value: Any) -> str | None:
        """None if the value fits, else where and why in one short line. Unusable if finding out would take too long."""
        _, reason = self._pricing.price(value)
        try:
            if self._validator.is_valid(value):
                return None
            if reason > self._most:
                return "does not fit the schema (too large to say where)"
            self._validator.validate(value)
        except ValueError as error:
            return _said(error)
        return None


def compile_schema(schema: Any, *, limits: SchemaLimits = _LIMITS) -> Checker:
    """A checker for a foreign schema, or Unusable."""
    import jsonschema_rs  # only clients that check something pay for it

    plan = read(schema, limits)
    kinds = {DRAFT_7: jsonschema_rs.Draft7Validator, DRAFT_2019: jsonschema_rs.Draft201909Validator}
    kind = kinds.get(plan.dialect, jsonschema_rs.Draft202012Validator)
    try:
        validator = kind(
            plan.schema,
            validate_formats=False,
            mask="the value",
            retriever=_refuse,
            # An engine whose time grows with the text only; what it lacks (looking around, back references) is refused.
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_PATTERN_SIZE, dfa_size_limit=_PATTERN_SIZE),
        )
    except jsonschema_rs.ValidationError as error:
        if error.kind.name == "format" and isinstance(error.instance, str):
            raise Unusable(f"a pattern that cannot be used: {clip(error.instance)}") from None
        raise Unusable(f"not a schema: {_first_line(error)}") from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise Unusable(f"not a schema: {_first_line(error)}") from None
    return Checker(plan, validator, limits)


def with_defaults(schema: Any, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer to a form, with the defaults of what it leaves out. spec: elicitation#requested-schema"""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return dict(answer)
    defaults = {
        name: deepcopy(one["default"])
        for name, one in cast("dict[str, Any]", properties).items()
        if isinstance(one, dict) and "default" in one and name not in answer
    }
    return {**answer, **defaults}


def _refuse(uri: str) -> Any:
    raise ValueError(f"refers elsewhere: {clip(uri)}")


def _first_line(error: Exception) -> str:
    return clip(str(error).partition("\n")[0], 200)


def _said(error: Any) -> str:
    path = cast("list[str | int]", getattr(error, "instance_path", []))
    place = ".".join(clip(str(step), 40) for step in path[:16]) + (".…" if len(path) > 16 else "")
    return clip(f"{clip(place, 240)}: {_first_line(error)}" if place else _first_line(error), _LONGEST)
