"""HDFS over WebHDFS: connections, uploads, and the sink."""
