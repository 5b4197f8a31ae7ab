"""PostgreSQL tables: rows sent by JDBC from Spark's JVM, with the txids in the same transaction."""
