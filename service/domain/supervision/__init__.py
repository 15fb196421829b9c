"""When a driver is started again, given up or let go: pure."""
