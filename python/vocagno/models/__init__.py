"""Access to transformers models: loading, language head, packing, layers."""
