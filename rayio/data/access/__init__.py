"""How libraries walk files (``loader.file_access``): a file for each way, behind one contract."""
