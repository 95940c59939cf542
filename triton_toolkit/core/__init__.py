"""Pure types and rules that every stage shares. Imports nothing heavy and no stage."""
