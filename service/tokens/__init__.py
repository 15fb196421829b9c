"""Access tokens: created, listed, revoked."""
