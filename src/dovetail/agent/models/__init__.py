"""Adapters for model providers, one file for each."""
