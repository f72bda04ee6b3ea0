"""The thin library behind the notebooks: reading, training, accounting, statistics, pictures, publishing."""
