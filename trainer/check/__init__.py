"""`--mode=check`: tries a run before it is one, and reports."""
