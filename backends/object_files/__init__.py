"""Files sink on object stores, and the address that the source and the table share."""
