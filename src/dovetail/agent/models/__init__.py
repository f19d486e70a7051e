"""Models, as a host puts questions to them: one method, one file for each maker."""
