"""Which expressions of a project hold an object of a class, and whether in evaluation mode.

By construction, through factories, containers, annotations, attributes and arguments, over files;
never by what a name looks like.  What does not show is told apart from what is surely another
class.
"""

from .found import Instances, instances_of
from .naming import ClassId, annotated, class_id, named

__all__ = ["ClassId", "Instances", "annotated", "class_id", "instances_of", "named"]
