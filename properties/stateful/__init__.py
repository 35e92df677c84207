"""Stateful: what must hold of objects that are called again and again: allocators, caches, guides. A run is a sequence of calls."""
