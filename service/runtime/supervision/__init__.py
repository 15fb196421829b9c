"""The supervisor: makes what runs equal to what the catalog says should run."""
