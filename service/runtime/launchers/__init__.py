"""Launchers start driver processes and end them: on this machine, and, from third parties, anywhere else."""
