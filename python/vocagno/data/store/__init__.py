"""Finished shards on disk."""
