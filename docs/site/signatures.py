"""Signatures of the API that only exist once the package is imported.

`Trainer`, `train` and `train_and_evaluate` take their arguments from one list
of options, so their code says `**arguments`.
"""

import inspect

import griffe


class Signatures(griffe.Extension):
    """Gives these the signatures and texts that `help` shows."""

    def on_package(self, *, pkg, **_):
        """Replaces them once the whole package was read."""
        if pkg.path != "trainer":
            return
        import trainer

        page = pkg["trainer.Trainer"]
        page["__init__"].parameters = _parameters(trainer.Trainer)
        for name in ("train", "train_and_evaluate"):
            method = getattr(trainer.Trainer, name)
            page[name].parameters = _parameters(method)
            text, _, options = inspect.getdoc(method).partition(
                "\n\nOptions:\n"
            )
            # To a caller, these are arguments like all others.
            page[name].docstring.value = text.replace(
                "    **options: see below.", options
            )


def _parameters(one):
    found = inspect.signature(one).parameters.values()
    return griffe.Parameters(
        *(
            griffe.Parameter(
                each.name,
                annotation=_annotation(each.annotation),
                kind=griffe.ParameterKind(each.kind.description),
                default=None
                if each.default is each.empty
                else repr(each.default),
            )
            for each in found
        )
    )


def _annotation(type_):
    if type_ is inspect.Parameter.empty:
        return None
    return inspect.formatannotation(type_).replace("typing.", "")
