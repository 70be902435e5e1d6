"""Stores: shards on disk with a manifest."""
