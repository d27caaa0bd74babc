"""Strategies that another project's engine carries. Each module imports its library; the registry imports none unasked."""
