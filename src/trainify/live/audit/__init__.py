"""A model is run, and values say what its gradients should be."""

from .report import Cause, Cut, Flow, Passage, Report

__all__ = ["Cause", "Cut", "Flow", "Passage", "Report"]
