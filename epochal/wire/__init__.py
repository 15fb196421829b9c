"""What travels between a control plane, its drivers and its clients: bodies, problems. No service, no Spark."""
