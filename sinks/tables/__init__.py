"""Tables of files: Arrow writes the files, the table's own library commits them."""
