"""The model repository on disk: layout, passports, atomic version folders."""
