"""The state of one rewrite: the imports that the new code needs, and the findings for the user."""

from collections import defaultdict
from typing import Literal

import libcst as cst

from dovetail.cli.migrate.names import TYPE_NAMES, resolve_name
from dovetail.cli.migrate.usage import Usage, get_code
from dovetail.wire.base import Struct

FindingKind = Literal["edit", "check"]


class Finding(Struct, frozen=True):
    """A construct that the user must edit or check.

    The kind "edit" means that the file does not work until the user edits the construct. The kind "check" means that
    the construct works, but its behaviour changes.
    """

    line: int
    kind: FindingKind
    construct: str
    advice: str


class Edits:
    """Collects imports and findings while a file is rewritten."""

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self.findings: list[Finding] = []
        self.helpers: dict[str, str] = {}  # the source code of each helper function or class, by name
        self.modules: set[str] = set()  # modules of the standard library to import
        self._aliases: dict[tuple[str, str], str] = {}  # the local name of each imported name
        self.http_options: dict[str, cst.BaseExpression] = {}  # constructor options that become options of `run`

    def report(self, line: int, construct: str, advice: str, kind: FindingKind = "edit") -> None:
        """Add a finding."""
        finding = Finding(line, kind, " ".join(construct.split()), advice)
        if finding not in self.findings:
            self.findings.append(finding)

    def import_name(self, full_name: str, alias: str | None = None) -> str:
        """Import a name, and return its local name in the new code."""
        module, _, name = full_name.rpartition(".")
        if (module, name) not in self._aliases:
            if name in self.usage.bound_names and module.split(".")[0] != "dovetail":
                return name  # The file already imports this name.
            if alias is None and name in self.usage.bound_names:
                alias = f"Dovetail{name[0].upper()}{name[1:]}"
            self._aliases[module, name] = alias or name
        return self._aliases[module, name]

    def import_expression(self, full_name: str) -> cst.Name:
        return cst.Name(self.import_name(full_name))

    def translate_name(self, local_name: str, qualified_name: str) -> str | None:
        """Return the dovetail name that replaces a name from fastmcp or mcp, or None if there is none."""
        full_name = resolve_name(qualified_name)
        if full_name is None:
            return None
        is_alias = local_name != qualified_name.rpartition(".")[2]
        return self.import_name(full_name, local_name if is_alias else None)

    def translate_attribute(self, node: cst.Attribute, qualified_name: str) -> cst.BaseExpression | None:
        """Return the new expression for an attribute of an imported module, such as `types.Tool`."""
        full_name = resolve_name(qualified_name)
        if full_name is None:
            return None
        module, _, name = full_name.rpartition(".")
        alias = get_code(node.value)
        is_types_module = alias in self.usage.imports and (
            self.usage.imports[alias].qualified_name in ("mcp.types", "mcp_types")
        )
        if is_types_module and module in ("dovetail", "dovetail.types") and name in TYPE_NAMES:
            local_name = self.import_name("dovetail.types", None if alias == "types" else alias)
            return cst.Attribute(cst.Name(local_name), cst.Name(name))
        return self.import_expression(full_name)

    def list_local_names(self) -> list[str]:
        """Return the local names of all imported names."""
        return [*self._aliases.values()]

    def build_imports(self, used_names: set[str]) -> list[str]:
        """Return the import statements of the new code. Skip names that neither the file nor a helper uses."""
        helper_code = "".join(self.helpers.values())
        lines = [f"import {module}" for module in sorted(self.modules)]
        names_by_module: defaultdict[str, list[str]] = defaultdict(list)
        for (module, name), alias in self._aliases.items():
            if alias not in used_names and alias not in helper_code:
                continue
            names_by_module[module].append(name if alias == name else f"{name} as {alias}")
        modules = sorted(names_by_module, key=lambda name: (name.split(".")[0] == "dovetail", name))
        return lines + [f"from {module} import {', '.join(sorted(names_by_module[module]))}" for module in modules]
