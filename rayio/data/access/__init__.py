"""File access (``loader.file_access``): how libraries walk files, a module each, behind one contract."""
