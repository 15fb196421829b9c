"""Daily folders in HDFS: a day's flights come as a folder, each route's day goes out as rows of an epoch's folder."""
