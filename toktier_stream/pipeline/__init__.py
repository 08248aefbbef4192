"""The worker: appends in, certified token updates out, exactly once."""
