"""Adapters to other people's implementations, each with the conventions and arithmetic its documentation states."""
