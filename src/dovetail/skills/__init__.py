"""Skills (`io.modelcontextprotocol/skills`): folders with instructions for models, which servers serve as resources."""
