"""Tables written by Spark, and the Spark that writes them. PySpark is imported only in here."""
