"""Records as words and pages: report.html with figures and tables, and all text that terminals print."""
