"""Turning a decision into text: what to write, and how to lay it out in somebody else's file.

:mod:`.specialize` makes of the reference functions what one file needs, by :mod:`.fold`;
:mod:`.template` writes a differentiable equivalent at a call; :mod:`.layout` fits lines into a file
(indentation, width, imports, helper functions).
"""
