"""The library's import name, in a checkout: ``draft_acceptance.rules`` is ``analysis.rules``.

The wheel of `analysis/` is imported as `draft_acceptance`. Code that is written for the wheel, a
module with a rule say, runs here unchanged, with the same classes and the same registry of rules.
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Alias(MetaPathFinder, Loader):
    """Finds each module below `draft_acceptance` as the module of the same name in `analysis`."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(spec.name.replace(__name__, "analysis", 1))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state  # the import system has put the alias there


sys.meta_path.insert(0, _Alias())
sys.modules[__name__] = import_module("analysis")
