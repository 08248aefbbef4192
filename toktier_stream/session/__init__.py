"""Session state: pages, certified splices, the LMDB store."""
