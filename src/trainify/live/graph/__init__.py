"""Graphs of :mod:`torch.fx`: what cuts a gradient in one, and one in which nothing does."""
