"""The only package that imports pyspark: it moves rows and holds no algorithm."""
