"""Edit some arguments of a call, and keep the layout of all other arguments."""

from collections.abc import Sequence
from typing import Any, Final

import libcst as cst


class CallArguments:
    """The arguments of a call. Edit the arguments, and then call `apply` to create the new call."""

    def __init__(self, call: cst.Call) -> None:
        self._call = call
        self._args: list[cst.Arg] = [*call.args]

    @property
    def args(self) -> Sequence[cst.Arg]:
        return self._args

    @property
    def has_starred(self) -> bool:
        """Whether the call passes `*args` or `**kwargs`."""
        return any(arg.star for arg in self._args)

    @property
    def positional(self) -> list[cst.BaseExpression]:
        return [arg.value for arg in self._args if arg.keyword is None and not arg.star]

    def get(self, name: str, position: int | None = None) -> cst.BaseExpression | None:
        """Return an argument by its name, or by its position."""
        arg = self._find(name, position)
        return None if arg is None else arg.value

    def pop(self, name: str, position: int | None = None) -> cst.BaseExpression | None:
        """Remove an argument and return its value."""
        arg = self._find(name, position)
        if arg is None:
            return None
        self._remove(arg)
        return arg.value

    def rename(self, old: str, new: str) -> None:
        self._args = [
            arg.with_changes(keyword=cst.Name(new)) if arg.keyword is not None and arg.keyword.value == old else arg
            for arg in self._args
        ]

    def name_positional(self, names: Sequence[str], start: int = 0) -> None:
        """Turn the positional arguments from index `start` on into keyword arguments."""
        position = 0
        for index, arg in enumerate(self._args):
            if arg.keyword is not None or arg.star:
                continue
            if start <= position < len(names):
                self._args[index] = arg.with_changes(keyword=cst.Name(names[position]), equal=_EQUAL)
            position += 1

    def unname(self, name: str) -> None:
        """Turn a keyword argument into the first positional argument."""
        arg = self._find(name)
        if arg is None:
            return
        self._remove(arg)
        self.insert(0, arg.value)

    def insert(self, index: int, value: cst.BaseExpression, keyword: str | None = None) -> None:
        new = create_arg(value, keyword)
        if index >= len(self._args):
            self.append(value, keyword)
            return
        self._args.insert(index, new.with_changes(comma=_pick_separator(self._args)))

    def append(self, value: cst.BaseExpression, keyword: str | None = None) -> None:
        new = create_arg(value, keyword)
        if self._args:
            last = self._args[-1]
            new = new.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
            separator = _pick_separator(self._args)
            if isinstance(last.comma, cst.Comma) and len(self._args) == 1:
                # The only argument has a trailing comma, so the new argument goes to a new line with the same indent.
                separator = cst.Comma(whitespace_after=self._call.whitespace_before_args)
            self._args[-1] = last.with_changes(comma=separator, whitespace_after_arg=cst.SimpleWhitespace(""))
        self._args.append(new)

    def set(self, name: str, value: cst.BaseExpression) -> None:
        """Set a keyword argument."""
        for index, arg in enumerate(self._args):
            if arg.keyword is not None and arg.keyword.value == name:
                self._args[index] = arg.with_changes(value=value)
                return
        self.append(value, name)

    def apply(self, func: cst.BaseExpression | None = None) -> cst.Call:
        """Build the call expression from the new arguments."""
        changes: dict[str, Any] = {} if func is None else {"func": func}
        if not self._args:
            changes |= {"whitespace_before_args": cst.SimpleWhitespace("")}
        return self._call.with_changes(args=self._args, **changes)

    def _find(self, name: str, position: int | None = None) -> cst.Arg | None:
        for arg in self._args:
            if arg.keyword is not None and arg.keyword.value == name:
                return arg
        positional = [arg for arg in self._args if arg.keyword is None and not arg.star]
        if position is not None and position < len(positional):
            return positional[position]
        return None

    def _remove(self, arg: cst.Arg) -> None:
        index = self._args.index(arg)
        del self._args[index]
        if self._args and index == len(self._args):
            self._args[-1] = self._args[-1].with_changes(comma=arg.comma, whitespace_after_arg=arg.whitespace_after_arg)


COMMA: Final = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
_EQUAL: Final = cst.AssignEqual(whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace(""))


def create_arg(value: cst.BaseExpression, keyword: str | None = None) -> cst.Arg:
    """Create an argument without spaces around the equals sign."""
    return cst.Arg(value) if keyword is None else cst.Arg(value, keyword=cst.Name(keyword), equal=_EQUAL)


def _pick_separator(args: Sequence[cst.Arg]) -> cst.Comma:
    """Return the comma between the first two arguments. A new argument copies its layout."""
    if len(args) > 1 and isinstance(args[0].comma, cst.Comma):
        return args[0].comma
    return COMMA
