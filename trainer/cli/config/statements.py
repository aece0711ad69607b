"""Reads the text of a written configuration, such as `config.gin`.

Nothing here imports gin or TensorFlow.
"""

from collections.abc import Iterator


def statements(text: str) -> Iterator[str]:
    """Yields one string per statement, even if it spans several lines."""
    statement: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if statement and not line.startswith(" "):
            yield " ".join(statement)
            statement = []
        # Gin wraps long statements, at a width that depends on the name.
        statement.append(line.strip().removesuffix("\\").rstrip())
    if statement:
        yield " ".join(statement)
