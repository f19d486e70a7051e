"""Adapters for model providers, one file per provider."""
