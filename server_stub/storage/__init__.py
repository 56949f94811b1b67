"""SQL: the system tables and the rows of the user, one module a database."""
