"""Analysis: spans become arrays, and arrays become the records of results."""
