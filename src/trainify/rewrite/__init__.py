"""Turning a decision into text: what to write, and how to lay it out in somebody else's file.

:mod:`.template` instantiates a differentiable equivalent, :mod:`.layout` fits lines into a file
(indentation, width, imports, helper functions).
"""
