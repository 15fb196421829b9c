"""HDFS over WebHDFS: who is asked and how, uploads, and the sink."""
