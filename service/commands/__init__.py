"""One module for each verb that changes something; each reads from top to bottom."""
