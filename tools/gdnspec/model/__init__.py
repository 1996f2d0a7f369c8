"""The form of every file, as pydantic models that refuse unknown keys. Imports neither torch nor numpy."""
