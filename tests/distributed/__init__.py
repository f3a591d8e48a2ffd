"""Programs that run on several processes; a package, because bench/distributed.py uses its models."""
