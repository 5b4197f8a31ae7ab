"""PostgreSQL tables by psycopg: rows sent with COPY, the txids in the same transaction."""
