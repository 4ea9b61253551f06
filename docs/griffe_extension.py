"""Griffe extension: a name that a package defines is documented, also where a submodule has the same name.

`specjax.drafters.ngram` is a function, as at run time, and not the module that implements it.
"""

import contextlib

import griffe


class DefinedNames(griffe.Extension):
    """Restores the members of `__init__.py` that submodules of the same name replaced."""

    def __init__(self) -> None:
        super().__init__()
        self._defined: dict[str, dict[str, griffe.Object | griffe.Alias]] = {}

    def on_module_members(self, *, mod: griffe.Module, **_) -> None:
        if mod.is_init_module:
            self._defined[mod.path] = dict(mod.members)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_) -> None:
        own = {p: m for p, m in self._defined.items() if p == pkg.path or p.startswith(f"{pkg.path}.")}
        for members in own.values():  # aliases resolve through the submodules that are replaced below
            for member in members.values():
                if member.is_alias:
                    with contextlib.suppress(griffe.AliasResolutionError):
                        member.final_target  # noqa: B018 - resolves it
        for path, members in own.items():
            module = loader.modules_collection[path]
            for name, member in members.items():
                if module.members.get(name) is not member:
                    module.set_member(name, member)
