"""The framework: functions become tools, resources and prompts; no transport is known here."""
