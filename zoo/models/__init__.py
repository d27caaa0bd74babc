"""The reference models, one package each."""
