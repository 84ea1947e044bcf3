"""What a source file says, read with :mod:`ast` and never executed.

:class:`ModuleFacts` is the whole file: text, tree, positions, names.  :mod:`.names` resolves what a
name stands for, :mod:`.flow` follows values through a function, :mod:`.guards` knows where
gradients are wanted, and :mod:`.project` looks across files.
"""

from .flow import FunctionFlow
from .module import ModuleFacts, parse_module
from .names import Target
from .project import Project

__all__ = ["FunctionFlow", "ModuleFacts", "Project", "Target", "parse_module"]
