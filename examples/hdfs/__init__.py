"""Daily folders in HDFS: each day's flights arrive as a folder, and daily totals are written to HDFS."""
