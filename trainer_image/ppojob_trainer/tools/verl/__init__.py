"""What users' code imports of verl, in pods without verl: stand-ins, and settings by its names."""
