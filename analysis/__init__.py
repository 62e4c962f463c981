"""The pure half of the project: arrays and tables in; arrays, tables and figures out.

Nothing here reads or writes files, knows of Hydra or of a model, or asks which device there is.
"""
