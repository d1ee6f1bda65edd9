"""Rules of bibliographies, and the energy they make."""
