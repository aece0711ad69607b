"""How the tasks of a cluster meet, and learn who is lost."""
